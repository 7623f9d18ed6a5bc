"""Tags of results: the field that edits them, and the filter of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from app.session.result_kind import ResultKind
from app.shell import frame, widgets
from torchsplit_core.workspace.store import Workspace

FIELD_PX = 360


def render_field(
    workspace: Workspace, result_kind: ResultKind, name: str, *, key: str, label: str = ""
) -> None:
    """Draw the field in which the user chooses, types and removes the tags of a result; it stores them at once.

    Without a `label` it is as wide as a few tags.
    """
    given = result_kind.tags(workspace)
    current = list(given.get(name, ()))
    options = in_use(given)
    state = f"{key} {name}"
    # Show what another tab has stored since.
    if state not in st.session_state or st.session_state.get(f"{state} stored") != current:
        st.session_state[state] = current
    st.session_state[f"{state} stored"] = current

    def store() -> None:
        with frame.fault_boundary():
            result_kind.tag(workspace, name, st.session_state[state])
        # Show them as stored: without blanks, each once, and unchanged after a refusal.
        st.session_state[state] = list(result_kind.tags(workspace).get(name, ()))

    st.multiselect(
        label or "Tags", list(dict.fromkeys((*options, *current, *st.session_state[state]))), key=state,
        on_change=store,
        accept_new_options=True, placeholder="Add a tag: type a word and press Enter",
        label_visibility="visible" if label else "collapsed", width="stretch" if label else FIELD_PX,
    )  # fmt: skip


def in_use(given: Mapping[str, Sequence[str]]) -> list[str]:
    """All tags of these results, sorted."""
    return sorted({tag for tags in given.values() for tag in tags}, key=str.casefold)


def render_filter(given: Mapping[str, Sequence[str]], *, key: str) -> list[str]:
    """Draw the filter of a list by tags, unless no result has one; return the chosen tags, none for all."""
    options = in_use(given)
    if not options:
        return []
    return widgets.multi_choice("With the tags", options, (), key, placeholder="Any")
