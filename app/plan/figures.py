"""What the fleet's table says of GPU types that models have no figures for: before a search, with the ways out."""

from __future__ import annotations

import streamlit as st

from app.format.numbers import plain
from app.plan.verdict import named
from app.shell import navigation
from torchsplit_core.planning.request.coverage import Uncovered, uncovered
from torchsplit_core.values import PlanRequest


def show(request: PlanRequest) -> None:
    """A box for each GPU type that some model cannot use for want of figures, and where to get them."""
    found = uncovered(request)
    for one in found:
        (st.error if one.nobody else st.warning)(plain(words(one)))
    if not found:
        return
    st.caption(
        "Figures come from a measurement, which also estimates the model on every GPU type from its graph, or from a "
        "table measured elsewhere. A model takes over what stands under its name when you plan again."
    )
    with st.container(horizontal=True):
        for label, tab in (("Measure and estimate", "Measure"), ("Import figures", "Import")):
            if st.button(label, key=f"figures-{tab}"):
                st.session_state[navigation.PROFILE_TAB] = tab
                navigation.go("Profile")


def words(found: Uncovered) -> str:
    """Who has no figures for a GPU type, and what that means."""
    if found.nobody:
        return f"No model has figures for {found.gpu_type}: no plan can use it."
    verb = "has" if len(found.models) == 1 else "have"
    return (
        f"{len(found.models)} of {found.total} models {verb} no figures for {found.gpu_type} and cannot run on it:"
        f" {named(found.models)}."
    )
