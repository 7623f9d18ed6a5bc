"""Models: which models are here, and what is known of them?"""

from app.models import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Models"))
