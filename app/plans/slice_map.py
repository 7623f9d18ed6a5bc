"""The slice map on a page, with a search for large fleets and the export buttons."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from app.components.picture import picture
from app.components.saving import exportable
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.pictures.slice_values import Marks
from torchsplit_core.values import PlanOutcome, PlanRequest

MANY_GPUS = 32
"""A fleet of this size or more has a search."""


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
    """The map of a plan under its `title`; `request` has the demands, the order of stages and the bytes of cuts.

    `busy` is the utilisation of each tenant, see `fleet_svg`. With `on_place` the user can choose slices, with
    `on_model` models, see `components.picture`.
    """
    find = ""
    # The height is the same without the field, so that an edit of the fleet does not move the map.
    with st.container(key=f"{key}-head", horizontal=True, vertical_alignment="center"):
        if title:
            st.header(title, anchor=False)
        if len(plan.gpus) >= MANY_GPUS:
            label = "Find a GPU, type, profile or model"
            find = st.text_input(label, key=f"{key}-find", label_visibility="collapsed", placeholder=label)
    places = on_place is not None
    with exportable("Slices", f"{file}.slices", key=key):
        drawn = fleet_svg(plan, colours, request, marks, find=find, busy=busy, places=places)
        picture(drawn, key=key, chosen=chosen, on_place=on_place, on_model=on_model, picks=True)
