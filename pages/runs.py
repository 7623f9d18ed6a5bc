"""Training runs: which are there, several side by side, a new one. Addresses of earlier versions name one here."""

from app.shell import frame
from app.object_pages import run

with frame.fault_boundary():
    run.render_list()
