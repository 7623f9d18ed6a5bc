"""The address of earlier versions for the profiles."""

from app.shell import frame
from app.object_pages import model

with frame.fault_boundary():
    model.render("Profile", all_profiles=True)
