"""Place: which layers of an LLM go on which particular GPUs, and how far from the best can that be?"""

from app import frame, place_view

with frame.telling():
    place_view.show(frame.open_page("Place"))
