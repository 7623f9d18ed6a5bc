"""The address of earlier versions for a placement."""

from app.placements import page
from app.session.thing import PLACEMENT
from app.shell import frame
from app.things import asked

with frame.telling():
    asked.show(PLACEMENT, "Place", page.show)
