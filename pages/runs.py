"""Training runs: which are there, several side by side, a new one; or the one that the address names."""

from app.shell import frame
from app.things import run

with frame.telling():
    run.show()
