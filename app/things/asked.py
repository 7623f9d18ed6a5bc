"""The page of a thing that is a request and its answer: a placement, a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.session.thing import Thing
from app.shell import address, frame
from app.things import unknown
from torchsplit_core.workspace.store import Workspace


def show(thing: Thing, way: str, body: Callable[[Workspace, str | None, Sequence[str]], None]) -> None:
    """The whole page; `way` is the title that leads to one, `body` what it shows of the one that is looked at (None:
    there is none) among all there are."""
    opened = frame.opened_workspace()
    known = thing.known(opened)
    if (missing := thing.asked_in_vain(known)) is not None:
        unknown.show(opened, thing.word, missing, known, way)
        return
    name = thing.current(opened, known)
    address.settle(opened, {thing.word: name})
    title = thing.word.capitalize()
    frame.head(opened, name or title, title, *filter(None, (name,)), failures=thing.work, about=name)
    body(opened, name, known)
