"""Trainings: which are there, and a new one."""

from app.session.result_kind import TRAINING
from app.shell import frame
from app.trainings import list_page

with frame.fault_boundary():
    list_page.render(frame.open_page("Training", *TRAINING.job_kinds))
