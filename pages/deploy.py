"""The address of earlier versions for the files of a plan."""

from app.shell import frame
from app.things import scenario

with frame.telling():
    scenario.show("Deploy")
