"""The address of earlier versions for the graph of a model."""

from app.shell import frame
from app.object_pages import model

with frame.fault_boundary():
    model.render()
