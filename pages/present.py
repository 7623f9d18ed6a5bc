"""A scenario on the whole window, for a review: verdict, figures, map, before and after."""

from app.plans.presentation import page
from app.shell import frame

with frame.fault_boundary():
    page.render()
