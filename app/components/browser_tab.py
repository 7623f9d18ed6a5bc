"""The id of the browser tab that a session belongs to, and drafts with it.

The tab keeps its id (`components/share.py`). A reload is a new session of the same tab: a cookie hands the id over.
"""

from __future__ import annotations

import re
import secrets

import streamlit as st

COOKIE = "torchsplit-tab"
_KEY = "id of the tab"
_ID = re.compile("[0-9a-f]{16}")


def identity() -> str:
    """The tab's id."""
    if _KEY not in st.session_state:
        st.session_state[_KEY] = previous_identity() or secrets.token_hex(8)
    return str(st.session_state[_KEY])


def previous_identity() -> str | None:
    """The id that a tab left in the cookie when it unloaded its page, a moment ago."""
    return _valid_id(st.context.cookies.get(COOKIE))


def set_identity(reported: object) -> None:
    """Take the id that the tab reports."""
    if (valid := _valid_id(reported)) is not None:
        st.session_state[_KEY] = valid


def _valid_id(reported: object) -> str | None:
    return reported if isinstance(reported, str) and _ID.fullmatch(reported) else None
