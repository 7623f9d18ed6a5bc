"""Host: what has this machine, and how busy is it?"""

from app.host import page
from app.shell import frame

with frame.fault_boundary():
    page.render(frame.open_page("Host"))
