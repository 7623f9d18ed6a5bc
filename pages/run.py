"""A training run: what does it do, and how does it stand?"""

from app.shell import frame
from app.object_pages import run

with frame.fault_boundary():
    run.render()
