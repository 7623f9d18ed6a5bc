"""Workspace: what is kept here, and how does it get in and out?"""

from app.shell import frame
from app.workspace import page

with frame.fault_boundary():
    page.render(frame.open_page("Workspace"))
