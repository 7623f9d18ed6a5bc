"""Badges, cards and charts; choices that outlive a rerun, a change of tab or page, and a change of their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import streamlit as st

from app.charts.theme import CONFIG
from app.components import saving
from app.format.badges import Badge, Colour
from app.format.glossary import explain
from torchsplit_core.files import write_text
from torchsplit_core.pictures.numbers import escape_markdown


def badge(text: str, colour: Colour) -> None:
    """Draw a badge; the glossary explains it on hover."""
    shown = Badge(text, colour)
    st.badge(escape_markdown(shown.text), color=shown.colour, help=shown.help)


def metric_cards(entries: Sequence[tuple[str, str, str]]) -> None:
    """Draw figures side by side, each as (label, figure, note); the glossary explains the label on hover."""
    for column, (label, figure, note) in zip(st.columns(len(entries)), entries, strict=True):
        with column.container(border=True, height="stretch", gap="xxsmall"):
            st.metric(label, figure, help=escape_markdown(explain(label)) or None)
            st.caption(note)


def is_dark() -> bool:
    """Whether the page has the dark theme."""
    return st.context.theme.type == "dark"


def chart(
    figure: Any, what: str, file: str, *, key: str, alt: str, on_point: Callable[[Any], None] | None = None
) -> None:
    """Draw a chart with the buttons of `saving.exportable`.

    A click on a point calls `on_point` with its first customdata, before the page runs again.
    """

    def clicked() -> None:
        points = st.session_state[key]["selection"]["points"]
        if on_point is not None and points and points[0].get("customdata"):
            on_point(points[0]["customdata"][0])

    more: dict[str, Any] = {"selection_mode": "points", "on_select": clicked} if on_point is not None else {}
    with saving.exportable(what, file, key=key):
        st.plotly_chart(figure, theme=None, key=key, config=CONFIG, alt=alt, **more)


def json_button(label: str, value: Any, file: str) -> None:
    """Draw a button that downloads a value as its contract file."""
    st.download_button(label, partial(write_text, value), file, "application/json", on_click="ignore")


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
    """Draw a choice of several, `first` to begin with; it drops options that no longer exist.

    It chooses a new option too, while fewer than `most_new` are chosen.
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
    """Draw a choice of one option: `first` to begin with, and again once the chosen option is gone."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = first
    chosen: str = st.selectbox(label, options, key=key, format_func=words, help=help, persist_state="session")
    return chosen


def radio_choice(label: str, options: Sequence[str], key: str, *, horizontal: bool = False) -> str:
    """Draw a choice of one among a few visible options; the first to begin with."""
    if st.session_state.get(key) not in options:
        st.session_state[key] = options[0]
    chosen: str = st.radio(label, options, key=key, horizontal=horizontal, persist_state="session")
    return chosen


def range_choice(label: str, options: Sequence[int], key: str) -> tuple[int, int] | None:
    """Draw a range of ascending numbers, all of them to begin with; None for fewer than two numbers."""
    if len(options) < 2:
        return None
    ends = (options[0], options[-1])
    if not set(st.session_state.get(key, ends)) <= set(options):
        del st.session_state[key]
    # The value tells Streamlit that there are two ends; from the session alone it would read one.
    low, high = st.select_slider(label, options, ends, key=key, persist_state="session")
    return low, high
