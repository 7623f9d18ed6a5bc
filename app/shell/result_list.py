"""Things of a kind as a list of cards, and the row above the page of one: another, a new one, away with this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from app.session.result_kind import ResultKind
from app.shell import navigation
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace


def render_cards(
    result_kind: ResultKind, known: Sequence[str], page_title: str, icon: str, words: Callable[[str], str]
) -> None:
    """A card for each of these, with the way to it and its words."""
    for name in known:
        with st.container(border=True, key=f"{result_kind.word}-{name}", gap="xsmall"):
            navigation.link(page_title, escape_markdown(name), name, icon=icon)
            st.caption(escape_markdown(words(name)))


def render_switch(workspace: Workspace, result_kind: ResultKind, name: str, known: Sequence[str]) -> None:
    """A choice among the known ones; another one opens at the same tab."""
    chosen = st.selectbox(
        result_kind.word.capitalize(), known, known.index(name), key=f"{result_kind.word}-choice {name} {len(known)}", width=320,
        label_visibility="collapsed",
    )  # fmt: skip
    if chosen != name:
        result_kind.choose(workspace, chosen)
        st.rerun()


def render_header(
    workspace: Workspace, result_kind: ResultKind, name: str, known: Sequence[str], *, list_title: str
) -> None:
    """Which one, a new one on the page of the title `shelf`, and away with this one."""
    with st.container(horizontal=True, vertical_alignment="center"):
        render_switch(workspace, result_kind, name, known)
        navigation.link(list_title, f"New {result_kind.word}", icon=":material/add:")
        if st.button(
            "Remove",
            key=f"{result_kind.word}-remove",
            help=f"Forget this {result_kind.word} and its request.",
        ):
            jobs.end(workspace, result_kind.job_kinds, name)
            result_kind.forget(workspace, name)
            st.rerun()
