"""The address of earlier versions for the graph of a model."""

from app.object_pages import model
from app.shell import frame

with frame.fault_boundary():
    model.render()
