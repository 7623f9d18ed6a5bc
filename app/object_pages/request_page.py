"""The page of a thing that is a request and its answer: a placement, a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.object_pages import unknown_object
from app.session.result_kind import ResultKind
from app.shell import address, frame
from torchsplit_core.workspace.store import Workspace


def render(
    result_kind: ResultKind, page_title: str, body: Callable[[Workspace, str | None, Sequence[str]], None]
) -> None:
    """The whole page; `page_title` is the title that leads to one, `body` what it shows of the one that is looked at
    (None: there is none) among all there are."""
    opened = frame.opened_workspace()
    known = result_kind.names(opened)
    if (missing := result_kind.unknown_in_address(known)) is not None:
        unknown_object.render(opened, result_kind.word, missing, known, page_title)
        return
    name = result_kind.current(opened, known)
    address.set_address(opened, {result_kind.word: name})
    title = result_kind.word.capitalize()
    frame.render_head(
        opened, name or title, title, *filter(None, (name,)), failures=result_kind.job_kinds, about=name
    )
    body(opened, name, known)
