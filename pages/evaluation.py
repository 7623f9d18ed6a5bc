"""Evaluation: does the planner do what its first text claims?"""

from app.evaluation import page
from app.shell import frame
from torchsplit_core.jobs.names import EVALUATE

with frame.telling():
    page.show(frame.open_page("Evaluation", EVALUATE))
