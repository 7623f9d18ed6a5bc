"""What a session has computed, so that drawing the page again does not compute it again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import streamlit as st

Result = TypeVar("Result")


def remembered(kind: str, key: Hashable, most: int, compute: Callable[[], Result]) -> Result:
    """The result under this key, computed where the session has none; of each kind it has the last `most`."""
    known: dict[Hashable, Any] = st.session_state.setdefault(kind, {})
    if key not in known:
        while len(known) >= most:
            known.pop(next(iter(known)))
        known[key] = compute()
    result: Result = known[key]
    return result
