"""Help: what do the words mean?"""

from app.overview import glossary
from app.shell import frame

with frame.fault_boundary():
    glossary.render(frame.open_page("Help"))
