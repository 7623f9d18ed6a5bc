"""Training runs: which are there, several side by side, a new one. Addresses of earlier versions name one here."""

from app.object_pages import run
from app.shell import frame

with frame.fault_boundary():
    run.render_list()
