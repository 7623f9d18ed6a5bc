"""A scenario: which slice of which GPU does every model get?"""

from app.shell import frame
from app.things import scenario

with frame.telling():
    scenario.show()
