"""The address of earlier versions for the graph of a model."""

from app.shell import frame
from app.things import model

with frame.telling():
    model.show()
