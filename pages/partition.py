"""Partition: where should a model be cut, and how far from the best can that be?"""

from app import frame, partition_view

with frame.telling():
    partition_view.show(frame.open_page("Partition"))
