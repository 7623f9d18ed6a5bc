"""Plan: which slice of which GPU does every model get?"""

from app.plan import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Plan"))
