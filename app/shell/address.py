"""The address names what a page shows: the thing, its tab, the view within it. Reloads and copied links show it again.

A page sets its whole address at once, before it draws: the browser adds every change to its history, and a page that
a full link opened changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from app.session import workspace as workspaces
from app.session.result_kind import RESULT_KINDS
from torchsplit_core.workspace.store import Workspace

TAB, VIEW, CUT, MODELS, AT, FROM = "tab", "view", "cut", "models", "at", "from"
QUERY_PARAMETERS = (
    workspaces.PARAMETER,
    *(kind.word for kind in RESULT_KINDS),
    TAB,
    VIEW,
    CUT,
    MODELS,
    AT,
    FROM,
)
"""The query parameters that pages set; pages leave others as they are."""


def slug(title: str) -> str:
    """A tab's title as the address has it."""
    return title.lower().replace(" ", "-")


def set_address(workspace: Workspace, wanted: Mapping[str, str | None]) -> None:
    """Make the address name the workspace and these, and none of our other parameters."""
    whole = parameters(workspace, wanted)
    now = st.query_params.to_dict()
    others = {key: value for key, value in now.items() if key not in QUERY_PARAMETERS}
    if now != others | whole:
        # One call: the browser adds each change to its history.
        st.query_params.from_dict(others | whole)


def parameters(workspace: Workspace, wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The query of a link to this workspace and these things."""
    workspace_query = {workspaces.PARAMETER: workspace.id} if workspaces.is_kept(workspace) else {}
    return workspace_query | {key: value for key, value in wanted.items() if value}


def selected_tab(parameter: str, titles: Sequence[str], key: str, first: str | None = None) -> str | None:
    """Which of the tabs under a widget's `key` is open, as the address names it: None for the `first`.

    Call it before drawing the tabs. A new address switches the tabs; a switch of the tabs changes the address.
    """
    first = first or titles[0]
    by_slug = {slug(title): title for title in titles}
    requested = st.query_params.get(parameter)
    requested = requested if requested in by_slug else None
    seen = f"{key} in the address"
    # Streamlit forgets the tabs of a page that the user left; the address still names them.
    if requested != st.session_state.get(seen) or key not in st.session_state:
        if requested is not None:
            st.session_state[key] = by_slug[requested]
        elif key in st.session_state:
            st.session_state[key] = first
    now = st.session_state.get(key)
    selected = slug(now) if now is not None and now in titles and now != first else None
    st.session_state[seen] = selected
    return selected


def selected_choice(parameter: str, key: str) -> str | None:
    """The choice under a widget's `key`, as the address names it; None without one.

    Call it before drawing the widget. A new address changes the choice; another choice changes the address.
    """
    requested = st.query_params.get(parameter)
    seen = f"{key} in the address"
    if requested != st.session_state.get(seen) or key not in st.session_state:
        st.session_state[key] = requested
    chosen: str | None = st.session_state[key]
    st.session_state[seen] = chosen
    return chosen
