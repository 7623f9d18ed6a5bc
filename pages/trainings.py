"""Trainings: which are there, and a new one."""

from app.session.result_kind import TRAINING
from app.shell import frame
from app.trainings.list_page import LIST

with frame.fault_boundary():
    LIST.render(frame.open_page("Training", *TRAINING.job_kinds))
