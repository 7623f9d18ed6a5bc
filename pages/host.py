"""Host: what has this machine, and how busy is it?"""

from app.host import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Host"))
