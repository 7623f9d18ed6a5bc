"""The address of earlier versions for the files of a plan."""

from app.shell import frame
from app.object_pages import scenario

with frame.fault_boundary():
    scenario.render("Deploy")
