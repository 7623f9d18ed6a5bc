"""A scenario: which slice of which GPU does every model get?"""

from app.object_pages import scenario
from app.shell import frame

with frame.fault_boundary():
    scenario.render()
