"""Profile: how fast is each model on which slice?"""

from app.models.profile import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Profile"))
