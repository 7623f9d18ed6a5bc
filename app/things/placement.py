"""The page of one placement."""

from __future__ import annotations

from app.placements import page as placements_page
from app.session import placements
from app.shell import address, frame
from app.things import unknown


def show() -> None:
    """The whole page."""
    opened = frame.opened_workspace()
    known = placements.known(opened)
    if (missing := placements.asked_in_vain(known)) is not None:
        unknown.show(opened, "placement", missing, known, "Place")
        return
    name = placements.current(opened, known)
    address.settle(opened, {placements.PARAMETER: name})
    frame.head(opened, name or "Placement", "Placement", *filter(None, (name,)), failures=placements.WORK)
    placements_page.show(opened)
