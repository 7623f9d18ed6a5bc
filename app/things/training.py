"""The page of one training."""

from __future__ import annotations

from app.session import trainings
from app.shell import address, frame
from app.things import unknown
from app.training import page as training_page


def show() -> None:
    """The whole page."""
    opened = frame.opened_workspace()
    known = trainings.known(opened)
    if (missing := trainings.asked_in_vain(known)) is not None:
        unknown.show(opened, "training", missing, known, "Train")
        return
    name = trainings.current(opened, known)
    address.settle(opened, {trainings.PARAMETER: name})
    frame.head(opened, name or "Training", "Train", *filter(None, (name,)), failures=trainings.WORK)
    training_page.show(opened)
