"""A training run: what does it do, and how does it stand?"""

from app.object_pages import run
from app.shell import frame

with frame.fault_boundary():
    run.render()
