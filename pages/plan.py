"""Plan: which slice of which GPU does every model get?"""

from app import frame, plan_view

with frame.telling():
    plan_view.show(frame.open_page("Plan"))
