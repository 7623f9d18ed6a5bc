"""Trainings: which are there, and a new one."""

from app.session.thing import TRAINING
from app.shell import frame
from app.training import shelf

with frame.telling():
    shelf.show(frame.open_page("Training", *TRAINING.work))
