"""A scenario: which slice of which GPU does every model get?"""

from app.shell import frame
from app.object_pages import scenario

with frame.fault_boundary():
    scenario.render()
