"""Training runs: which are there, several side by side, a new one. Addresses of earlier versions name one here."""

from app.shell import frame
from app.things import run

with frame.telling():
    run.show_all()
