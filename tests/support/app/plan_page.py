"""The Plan page as its tests see it: one of its tabs, what stands there, and its buttons."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from app.plans import page as plan_page


def tab(page: AppTest, name: str) -> AppTest:
    """The page with that tab open."""
    page.session_state[plan_page.TAB] = name
    page.run()
    assert not page.exception
    return page


def said(page: AppTest) -> str:
    """Everything the page says in words, as a reader sees it."""
    kinds = ("html", "markdown", "success", "caption", "header")
    text = "\n".join(str(getattr(e, "value", None) or e.proto.body) for kind in kinds for e in page.get(kind))
    return text.replace("\\", "").replace("\u202f", " ")


def press(page: AppTest, key: str) -> AppTest:
    """The page after a press of the button of that key."""
    page.button(key=key).click().run()
    assert not page.exception
    return page
