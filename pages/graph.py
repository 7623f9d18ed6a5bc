"""Graph: how does a model flow, and where can it be cut?"""

from app.models.graph import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Graph"))
