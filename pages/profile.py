"""The address of earlier versions for the profiles."""

from app.shell import frame
from app.things import model

with frame.telling():
    model.show("Profile", every=True)
