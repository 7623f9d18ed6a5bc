"""A scenario on the whole window, for a review: verdict, figures, map, before and after."""

from app.plan.present import page
from app.shell import frame

with frame.telling():
    page.show()
