"""What every component of the browser needs: its registration and its key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import streamlit as st


@st.cache_resource
def component(name: str, _parts: Mapping[str, Any]) -> Any:
    """The component of that name, registered once a server. `_parts` are its html, css, js and isolate_styles."""
    return st.components.v2.component(name, **_parts)


def component_key(key: str) -> str:
    """The key as Streamlit takes it: it refuses two underscores in a row, which names of models may have."""
    return key if "__" not in key else hashlib.sha256(key.encode()).hexdigest()[:32]
