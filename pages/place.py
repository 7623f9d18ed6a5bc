"""Place: which layers of an LLM go on which particular GPUs, and how far from the best can that be?"""

from app.placements import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Place"))
