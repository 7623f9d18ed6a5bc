"""Partition: where should a model be cut, and how far from the best can that be?"""

from app.models.cuts import page
from app.shell import frame

with frame.telling():
    page.show(frame.open_page("Partition"))
