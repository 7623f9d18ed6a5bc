"""The address of earlier versions for the profiles."""

from app.object_pages import model
from app.shell import frame

with frame.fault_boundary():
    model.render("Profile", all_profiles=True)
