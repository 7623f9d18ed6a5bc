"""Workspace: what is kept here, and how does it get in and out?"""

from app import frame, workspace_view

with frame.telling():
    workspace_view.show(frame.open_page("Workspace"))
