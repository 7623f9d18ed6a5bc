"""LLM placements: which are there, and a new one."""

from app.placements.list_page import LIST
from app.session.result_kind import PLACEMENT
from app.shell import frame

with frame.fault_boundary():
    LIST.render(frame.open_page("LLM placements", *PLACEMENT.job_kinds))
