"""The slice map on a page: with what is looked for in a large fleet, and as a picture to take along."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from app.components.picture import picture
from app.components.saving import exportable
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.pictures.slice_values import Marks
from torchsplit_core.values import PlanOutcome, PlanRequest

MANY_GPUS = 32
"""From so many on one looks for a GPU by its name."""


def render(
    plan: PlanOutcome,
    request: PlanRequest | None,
    colours: Mapping[str, str],
    marks: Marks | None = None,
    *,
    key: str,
    file: str,
    busy: Mapping[tuple[str, int, str, str], float] | None = None,
    chosen: str | None = None,
    on_place: Callable[[str], None] | None = None,
    on_model: Callable[[str], None] | None = None,
    title: str = "",
) -> None:
    """The map of a plan, under its `title`; `request` tells demands, the order of stages and what their cuts carry.

    `busy`: how much of its time each tenant works, see `fleet_svg`. With `on_place` slices can be chosen, with
    `on_model` models, see `components.picture`.
    """
    find = ""
    # One height with the field and without: an edit of the fleet moves no map.
    with st.container(key=f"{key}-head", horizontal=True, vertical_alignment="center"):
        if title:
            st.header(title, anchor=False)
        if len(plan.gpus) >= MANY_GPUS:
            find = st.text_input(
                "Find a GPU, type, profile or model", key=f"{key}-find", label_visibility="collapsed",
                placeholder="Find a GPU, type, profile or model",
            )  # fmt: skip
    with exportable("Slices", f"{file}.slices", key=key):
        drawn = fleet_svg(plan, colours, request, marks, find=find, busy=busy, places=on_place is not None)
        picture(drawn, key=key, chosen=chosen, on_place=on_place, on_model=on_model, picks=True)
