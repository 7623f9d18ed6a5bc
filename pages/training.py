"""A training: how is a model trained on a fleet?"""

from app.shell import frame
from app.things import training

with frame.telling():
    training.show()
