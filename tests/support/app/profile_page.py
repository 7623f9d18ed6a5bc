"""The Profile page as a user drives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlit.testing.v1 import AppTest

from tests.support.app.values import SOURCE
from torchsplit_core.workspace.store import Workspace

Open = Callable[..., AppTest]


def said(page: AppTest) -> str:
    """All text of a page, its tables of HTML too."""
    parts = [
        str(getattr(element, "value", ""))
        for kind in ("markdown", "header", "info", "error", "caption", "success")
        for element in page.get(kind)
    ]
    parts += [str(element.proto.body) for element in page.get("html")]
    return "\n".join(parts).replace("\\", "").replace("\u202f", " ")


def opened(page: Open, workspace: Workspace, tab: str) -> AppTest:
    """The page at a tab."""
    found = page("profile", workspace)
    found.session_state["profile-tab"] = tab
    found.run()
    assert not found.exception
    return found


def button(page: AppTest, label: str) -> Any:
    """The button with this label."""
    return next(found for found in page.button if found.label == label)


def choose_source(page: AppTest) -> AppTest:
    return page.multiselect(key="profile-measure-models").set_value([SOURCE]).run()
