"""Choices that stay: over a rerun, a change of tab or page, and when what there is to choose from changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st

from app.format.badges import Badge, Colour
from app.format.glossary import explain
from torchsplit_core.pictures.numbers import escape_markdown


def badge(text: str, colour: Colour) -> None:
    """A word in a colour, with what the glossary says of it for the pointer."""
    shown = Badge(text, colour)
    st.badge(escape_markdown(shown.text), color=shown.colour, help=shown.help)


def metric_cards(entries: Sequence[tuple[str, str, str]]) -> None:
    """Figures side by side, each as (label, figure, note), with what the glossary says of the label."""
    for column, (label, figure, note) in zip(st.columns(len(entries)), entries, strict=True):
        with column.container(border=True, height="stretch", gap="xxsmall"):
            st.metric(label, figure, help=escape_markdown(explain(label)) or None)
            st.caption(note)


def multi_choice(
    label: str,
    options: Sequence[str],
    first: Sequence[str],
    key: str,
    *,
    most_new: int = 0,
    words: Callable[[str], str] = str,
    help: str | None = None,
    placeholder: str = "Choose",
) -> list[str]:
    """A choice of several, `first` to begin with; what is no option any more is dropped.

    An option that was not there before joins the choice while that has fewer than `most_new`.
    """
    seen_key = f"{key} seen"
    chosen = [option for option in st.session_state.get(key, first) if option in options]
    for option in options:
        if option not in st.session_state.get(seen_key, options) and len(chosen) < most_new:
            chosen.append(option)
    st.session_state[key] = chosen
    st.session_state[seen_key] = list(options)
    selection: list[str] = st.multiselect(
        label,
        options,
        key=key,
        format_func=words,
        help=help,
        placeholder=placeholder,
        persist_state="session",
    )
    return selection


def single_choice(
    label: str,
    options: Sequence[str],
    first: str,
    key: str,
    *,
    words: Callable[[str], str] = str,
    help: str | None = None,
) -> str:
    """A choice of one; `first` to begin with, and again where the choice is no option any more."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = first
    chosen: str = st.selectbox(label, options, key=key, format_func=words, help=help, persist_state="session")
    return chosen


def radio_choice(label: str, options: Sequence[str], key: str, *, horizontal: bool = False) -> str:
    """One of a few, all in sight; the first to begin with."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    chosen: str = st.radio(label, options, key=key, horizontal=horizontal, persist_state="session")
    return chosen


def range_choice(label: str, options: Sequence[int], key: str) -> tuple[int, int] | None:
    """From one of some ascending numbers to another, all of them to begin with; None where there is no choice."""
    if len(options) < 2:
        return None
    ends = (options[0], options[-1])
    if not set(st.session_state.get(key, ends)) <= set(options):
        del st.session_state[key]
    # The value says that there are two ends; set in the session alone, it would be read back as one.
    low, high = st.select_slider(label, options, ends, key=key, persist_state="session")
    return low, high
