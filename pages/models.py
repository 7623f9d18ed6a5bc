"""Models: which models are here, and what is known of them?"""

from app import frame, models_view

with frame.telling():
    models_view.show(frame.open_page("Models"))
