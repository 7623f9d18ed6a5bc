"""Help: what do the words mean?"""

from app.overview import glossary
from app.shell import frame

with frame.telling():
    glossary.show(frame.open_page("Help"))
