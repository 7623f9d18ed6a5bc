"""Profile: how fast is each model on which slice?"""

from app import frame, profile_view

with frame.telling():
    profile_view.show(frame.open_page("Profile"))
