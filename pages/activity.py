"""Activity: what works, what worked, and how did it end?"""

from app.overview import work
from app.shell import frame

with frame.fault_boundary():
    work.render(frame.open_page("Activity"))
