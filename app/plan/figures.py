"""What the fleet's table says of GPU types that models have no figures for: before a search, with the ways out."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.session import cuts
from app.session import draft as drafts
from app.session.workspace import names, read
from app.shell import frame, navigation
from torchsplit_core import workflow
from torchsplit_core.hardware import catalogue
from torchsplit_core.pictures.numbers import counted, plain
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
    runnable, figures_only = _without_estimate(found, current, profiles, wanted)
    _told(found, current, wanted, runnable, figures_only)
    with st.container(horizontal=True):
        if wanted and st.button(
            f"Estimate {counted(len(wanted), 'model')}", type="primary", key="figures-estimate"
        ):
            with frame.telling():
                _estimate(workspace, name, stored, current, profiles, wanted)
                st.rerun()
        if runnable and st.button("Measure and estimate", key="figures-Measure"):
            st.session_state[navigation.PROFILE_TAB] = "Measure"
            navigation.go("Profile", runnable[0])
        if st.button("Import figures", key="figures-Import"):
            st.session_state[navigation.PROFILE_TAB] = "Import"
            navigation.go("Profile")
        if figures_only and st.button("Add model files", key="figures-files"):
            navigation.go("Models")


def _without_estimate(
    found: tuple[Uncovered, ...],
    current: PlanRequest,
    profiles: Mapping[str, Profile],
    wanted: Mapping[str, list[str]],
) -> tuple[list[str], list[str]]:
    """Of the models without figures: sources that can be run here, and names of those that are figures only."""
    sources = {model.name: model.source for model in current.models}
    runnable, figures_only = [], []
    for name in dict.fromkeys(name for one in found for name in one.models):
        known = profiles.get(name)
        source = (known.source if known else None) or sources.get(name)
        if source and not source.startswith(("library:", "import:")):
            runnable.append(source)
        elif name not in wanted:
            figures_only.append(name)
    return runnable, figures_only


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


def _told(
    found: tuple[Uncovered, ...],
    current: PlanRequest,
    wanted: Mapping[str, list[str]],
    runnable: list[str],
    figures_only: list[str],
) -> None:
    """What the buttons do, and what is possible for models that cannot be estimated."""
    if wanted:
        st.caption(
            "Estimates come from the graph and a roofline model, each with a 90 % interval. Untested on hardware."
        )
    if len(runnable) > len(wanted):
        st.caption(
            "Measure and estimate traces and times the models that can run here and are not traced yet, and estimates "
            "them for every GPU type."
        )
    if figures_only:
        points = {
            point.gpu_type
            for model in current.models
            if model.name in figures_only
            for variant in model.variants
            for stage in variant.stages
            for point in stage.points
        }
        has = "has" if len(figures_only) == 1 else "have"
        known = f"{has} figures for {', '.join(sorted(points))} only" if points else f"{has} no figures here"
        types = " and ".join(one.gpu_type for one in found)
        st.caption(
            plain(
                f"{named(figures_only)} {known}, and no model file to estimate from. For {types}: import measurements "
                "made there, or add the model files. Figures of one GPU type say nothing reliable about another."
            )
        )


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
