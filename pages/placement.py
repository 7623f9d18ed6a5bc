"""A placement: which layers of an LLM go on which GPUs?"""

from app.object_pages import request_page
from app.placements import page
from app.session.result_kind import PLACEMENT
from app.shell import frame

with frame.fault_boundary():
    request_page.render(PLACEMENT, "Place", page.render)
