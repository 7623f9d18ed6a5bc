"""The address of earlier versions for a placement."""

from app.shell import frame
from app.things import placement

with frame.telling():
    placement.show()
