"""A training run: what does it do, and how does it stand?"""

from app.shell import frame
from app.things import run

with frame.telling():
    run.show()
