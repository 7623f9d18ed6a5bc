"""Evaluation: the planner beside the usual rules, and what that says of four claims."""

from app.evaluation import page
from app.shell import frame
from torchsplit_core.jobs.job_kinds import EVALUATE

with frame.fault_boundary():
    page.render(frame.open_page("Evaluation", EVALUATE))
