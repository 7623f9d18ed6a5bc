"""A model: how does it flow, how fast is it, where can it be cut?"""

from app.shell import frame
from app.object_pages import model

with frame.fault_boundary():
    model.render()
