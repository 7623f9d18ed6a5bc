"""The address of earlier versions for the files of a plan."""

from app.object_pages import scenario
from app.shell import frame

with frame.fault_boundary():
    scenario.render("Deploy")
