"""The page for an address that names an unknown object: it says so, keeps the address, and offers what there is."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.shell import frame, navigation
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace

MOST = 20
"""Objects that are offered."""


def render(workspace: Workspace, kind: str, missing: str, known: Sequence[str], page_title: str) -> None:
    """The whole page; `kind` is the word for such an object, `page_title` the title in `navigation.PAGE_LINKS`."""
    frame.render_head(workspace, f"There is no such {kind}", f"Unknown {kind}")
    text = f"There is no {kind} {missing!r} in this workspace (any more): it was renamed or removed, or the address "
    text += "is of another workspace. Nothing is shown in its place, and the address stays as it is."
    st.error(escape_markdown(text))
    for name in known[:MOST]:
        navigation.link(page_title, escape_markdown(name), name)
    if not known:
        navigation.link("Overview", f"This workspace has no {kind} yet: to the overview")
