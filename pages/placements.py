"""LLM placements: which are there, and a new one."""

from app.placements import list_page
from app.session.result_kind import PLACEMENT
from app.shell import frame

with frame.fault_boundary():
    list_page.render(frame.open_page("LLM placements", *PLACEMENT.job_kinds))
