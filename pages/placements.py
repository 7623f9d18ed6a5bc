"""LLM placements: how many GPUs an LLM needs, which placements are there, and a new one."""

from app.placements import tabs
from app.session.result_kind import PLACEMENT
from app.shell import frame

with frame.fault_boundary():
    tabs.render(frame.open_page("LLM placements", *PLACEMENT.job_kinds))
