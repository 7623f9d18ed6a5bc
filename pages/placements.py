"""LLM placements: which are there, and a new one."""

from app.placements import shelf
from app.session.thing import PLACEMENT
from app.shell import frame

with frame.telling():
    shelf.show(frame.open_page("LLM placements", *PLACEMENT.work))
