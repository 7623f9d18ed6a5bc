"""The profile of a model, beside those of others: how fast is each model on which slice, and how sure is that?"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.models.profile import compare, curves, memory, summary, table, table_import
from app.models.profile.measuring import tab as measuring_tab
from app.session.workspace import names, read_all
from app.shell import frame, navigation
from torchsplit_core.values import Profile, at_first_length, sequence_lengths
from torchsplit_core.workspace.store import Workspace

TAB = navigation.PROFILE_TAB
SHOWING, MAKING = ("Curves", "Memory", "Table", "Compare"), ("Measure", "Import")
TITLES = (*SHOWING, *MAKING)
_LAST = "profile-model"
"""The session's key of the model that was shown last."""


def render(workspace: Workspace, name: str | None = None) -> None:
    """The whole tab: the figures of the model `name`, or of all, and of others that the user adds."""
    graphs = names(workspace, "graph")
    stored: dict[str, Profile] = read_all(workspace, "profile")
    profiles = {name: at_first_length(profile) for name, profile in stored.items()}
    _begin_with(name, graphs, profiles)
    shown = {name: profiles[name]} if name in profiles else {} if name else profiles
    if shown:
        st.write("How fast is each model on which slice, and how sure is that?")
        for source in shown:
            first, *others = sequence_lengths(stored[source]) or (None,)
            if others:
                more = ", ".join("no length" if length is None else str(length) for length in others)
                st.caption(
                    f"{source} is shown at sequence length {first}; its profile also has rows at {more}."
                )
        summary.render(shown)
    else:
        st.write("Here you will see throughput and service time of a model over batch sizes and slices.")
        if not graphs and not profiles:
            st.caption(
                "Measure a sample below, import figures measured elsewhere, or bring a model of your own."
            )
            navigation.link("Models", "Choose models")
    # The page opens at the first tab that has something to show.
    st.session_state.setdefault(TAB, SHOWING[0] if shown else MAKING[0])
    tabs = dict(zip(TITLES, st.tabs(TITLES, key=TAB, on_change="rerun"), strict=True))
    for title, tab in tabs.items():
        if tab.open:
            with tab:
                _tab(workspace, title, graphs, profiles)


def _begin_with(name: str | None, graphs: Sequence[str], profiles: dict[str, Profile]) -> None:
    """Choose the model in every tab, if another one was shown before."""
    if name is None or name == st.session_state.get(_LAST):
        return
    st.session_state[_LAST] = name
    if name in profiles:
        st.session_state["profile-show-models"] = [name]
        for widget in ("profile-memory-model", "profile-compare-first", "profile-compare-profile"):
            st.session_state[widget] = name
    if name in measuring_tab.sources(graphs, profiles):
        st.session_state["profile-measure-models"] = [name]


def _tab(workspace: Workspace, title: str, graphs: tuple[str, ...], profiles: dict[str, Profile]) -> None:
    if title == "Measure":
        measuring_tab.render(workspace, graphs, profiles)
    elif title == "Import":
        table_import.render(workspace)
    elif not any(profile.rows for profile in profiles.values()):
        st.info("No figure is here yet: measure a model under Measure, or bring figures under Import.")
    elif title == "Table":
        table.render(workspace, profiles)
    else:
        with frame.picture_beside("profile"):
            if title == "Curves":
                curves.render(workspace, profiles)
            elif title == "Memory":
                memory.render(profiles)
            else:
                compare.render(workspace, profiles)
