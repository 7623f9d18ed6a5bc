"""A model: how does it flow, how fast is it, where can it be cut?"""

from app.shell import frame
from app.things import model

with frame.telling():
    model.show()
