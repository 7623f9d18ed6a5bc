"""Workspace: what is kept here, and how does it get in and out?"""

from app.shell import frame
from app.workspace import page

with frame.telling():
    page.show(frame.open_page("Workspace"))
