"""A placement: which layers of an LLM go on which GPUs?"""

from app.shell import frame
from app.things import placement

with frame.telling():
    placement.show()
