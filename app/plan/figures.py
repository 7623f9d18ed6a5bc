"""What the fleet's table says of GPU types that models have no figures for: before a search, with the ways out."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.format.numbers import plain
from app.session import cuts
from app.session import draft as drafts
from app.session.workspace import names, read
from app.shell import frame, navigation
from torchsplit_core import workflow
from torchsplit_core.hardware import catalogue
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.coverage import Uncovered, uncovered
from torchsplit_core.planning.sureness.words import named
from torchsplit_core.values import PlanRequest, Profile
from torchsplit_core.workspace.store import Workspace


def show(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    current: PlanRequest,
    profiles: Mapping[str, Profile],
) -> None:
    """A box for each GPU type that some model of the `current` request cannot use for want of figures, and where to
    get them: estimated at one press where the graphs are here, measured, or imported."""
    found = uncovered(current)
    for one in found:
        (st.error if one.nobody else st.warning)(plain(words(one)))
    if not found:
        return
    wanted = estimable(workspace, found, profiles)
    _told(found, wanted)
    with st.container(horizontal=True):
        if wanted and st.button(f"Estimate {_models(len(wanted))}", type="primary", key="figures-estimate"):
            with frame.telling():
                _estimate(workspace, name, stored, current, profiles, wanted)
                st.rerun()
        for label, tab in (("Measure and estimate", "Measure"), ("Import figures", "Import")):
            if st.button(label, key=f"figures-{tab}"):
                st.session_state[navigation.PROFILE_TAB] = tab
                navigation.go("Profile")


def estimable(
    workspace: Workspace, found: tuple[Uncovered, ...], profiles: Mapping[str, Profile]
) -> dict[str, list[str]]:
    """The GPU types that each model can be estimated on at once, since its graph is here and they have MIG slices."""
    graphs, sliced = set(names(workspace, "graph")), set(catalogue())
    wanted: dict[str, list[str]] = {}
    for one in found:
        for model in one.models:
            known = profiles.get(model)
            if known is not None and known.source in graphs and one.gpu_type in sliced:
                wanted.setdefault(model, []).append(one.gpu_type)
    return wanted


def _told(found: tuple[Uncovered, ...], wanted: Mapping[str, list[str]]) -> None:
    """What the buttons do, and who cannot be estimated."""
    if wanted:
        st.caption(
            "An estimate is the roofline's, from the graph, with its 90 % interval: untested on hardware."
        )
    without = [
        model for model in dict.fromkeys(name for one in found for name in one.models) if model not in wanted
    ]
    if without:
        st.caption(
            plain(
                f"{named(without)} {'has' if len(without) == 1 else 'have'} no traced graph here to estimate from: "
                "trace and measure, which also estimates on every GPU type, or import a table measured elsewhere."
            )
        )


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}"


def _estimate(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    current: PlanRequest,
    profiles: Mapping[str, Profile],
    wanted: Mapping[str, list[str]],
) -> None:
    """Estimate, store, and take the figures into the draft. Raises InputFault where a graph is not the profile's."""
    known = dict(profiles)
    for model, types in wanted.items():
        source = known[model].source
        known[model] = workflow.with_estimates(known[model], read(workspace, "graph", source), types)
        workspace.put("profile", source, known[model])
    drafts.change(workspace, name, stored, edit.with_points(current, known, cuts.offers(workspace)))


def words(found: Uncovered) -> str:
    """Who has no figures for a GPU type, and what that means."""
    if found.nobody:
        return f"No model has figures for {found.gpu_type}: no plan can use it."
    verb = "has" if len(found.models) == 1 else "have"
    return (
        f"{len(found.models)} of {found.total} models {verb} no figures for {found.gpu_type} and cannot run on it:"
        f" {named(found.models)}."
    )
