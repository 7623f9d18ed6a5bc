"""The page of a request and its outcome: a placement, a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.object_pages import unknown_object
from app.session.result_kind import ResultKind
from app.shell import address, frame
from torchsplit_core.workspace.store import Workspace


def render(
    result_kind: ResultKind, page_title: str, body: Callable[[Workspace, str | None, Sequence[str]], None]
) -> None:
    """The whole page; `page_title` is the title in `navigation.PAGE_LINKS`, `body` draws the current result (None:
    there is none) among the known ones."""
    opened = frame.opened_workspace()
    known = result_kind.names(opened)
    if (missing := result_kind.unknown_in_address(known)) is not None:
        unknown_object.render(opened, result_kind.word, missing, known, page_title)
        return
    name = result_kind.current(opened, known)
    address.set_address(opened, {result_kind.word: name})
    title = result_kind.word.capitalize()
    window = (title, *filter(None, (name,)))
    frame.render_head(opened, name or title, *window, failures=result_kind.job_kinds, about=name)
    body(opened, name, known)
