"""A training: how is a model trained on a fleet?"""

from app.session.thing import TRAINING
from app.shell import frame
from app.things import asked
from app.training import page

with frame.telling():
    asked.show(TRAINING, "Train", page.show)
