"""A model: how does it flow, how fast is it, where can it be cut?"""

from app.object_pages import model
from app.shell import frame

with frame.fault_boundary():
    model.render()
