"""Things of a kind as a list of cards, and the row above the page of one: another, a new one, away with this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from app.session.thing import Thing
from app.shell import navigation
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.workspace.store import Workspace


def cards(thing: Thing, known: Sequence[str], way: str, icon: str, words: Callable[[str], str]) -> None:
    """A card for each of these, with the way to it and its words."""
    for name in known:
        with st.container(border=True, key=f"{thing.word}-{name}", gap="xsmall"):
            navigation.link(way, escape_markdown(name), name, icon=icon)
            st.caption(escape_markdown(words(name)))


def other(workspace: Workspace, thing: Thing, name: str, known: Sequence[str]) -> None:
    """A choice among the known ones; another one opens at the same tab."""
    chosen = st.selectbox(
        thing.word.capitalize(), known, known.index(name), key=f"{thing.word}-choice {name} {len(known)}", width=320,
        label_visibility="collapsed",
    )  # fmt: skip
    if chosen != name:
        thing.choose(workspace, chosen)
        st.rerun()


def choice(workspace: Workspace, thing: Thing, name: str, known: Sequence[str], *, shelf: str) -> None:
    """Which one, a new one on the page of the title `shelf`, and away with this one."""
    with st.container(horizontal=True, vertical_alignment="center"):
        other(workspace, thing, name, known)
        navigation.link(shelf, f"New {thing.word}", icon=":material/add:")
        if st.button("Remove", key=f"{thing.word}-remove", help=f"Forget this {thing.word} and its request."):
            jobs.end(workspace, thing.work, name)
            thing.forget(workspace, name)
            st.rerun()
