"""GPU types of the fleet for which models have no figures, and the buttons that get figures."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.session import cuts
from app.session import draft as drafts
from app.session.workspace import names, read
from app.shell import frame, navigation
from torchsplit_core import workflow
from torchsplit_core.hardware import peak_names
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.confidence.formatting import format_names
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.coverage import UncoveredGpuType, uncovered_gpu_types
from torchsplit_core.values import PlanRequest, Profile
from torchsplit_core.workspace.store import Workspace


def render(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    current: PlanRequest,
    profiles: Mapping[str, Profile],
) -> None:
    """A box for each GPU type for which some model of the `current` request lacks figures, and buttons that estimate
    them from graphs here, measure or import them."""
    gaps = uncovered_gpu_types(current)
    for gap in gaps:
        (st.error if gap.unusable else st.warning)(escape_markdown(describe_gap(gap)))
    if not gaps:
        return
    wanted = estimable(workspace, gaps, profiles)
    others = transferable(gaps, current, wanted)
    runnable, figures_only = _without_estimate(gaps, current, profiles, wanted)
    _render_notes(gaps, current, wanted, runnable, [gap for gap in figures_only if gap not in others])
    if others:
        st.caption(
            "Models without a graph here are estimated from their figures of other GPU types and published peaks, with "
            "wide 90 % intervals."
        )
    with st.container(horizontal=True):
        offered = bool(wanted or others)
        if offered and st.button("Estimate for these GPUs", type="primary", key="figures-estimate"):
            with frame.fault_boundary():
                _estimate(workspace, name, stored, current, profiles, wanted, others)
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
    gaps: tuple[UncoveredGpuType, ...],
    current: PlanRequest,
    profiles: Mapping[str, Profile],
    wanted: Mapping[str, list[str]],
) -> tuple[list[str], list[str]]:
    """Of the models without figures, the sources that can run here, and the names of those that are figures only."""
    sources = {model.name: model.source for model in current.models}
    runnable, figures_only = [], []
    for name in dict.fromkeys(name for gap in gaps for name in gap.models):
        known = profiles.get(name)
        source = (known.source if known else None) or sources.get(name)
        if source and not source.startswith(("library:", "import:")):
            runnable.append(source)
        elif name not in wanted:
            figures_only.append(name)
    return runnable, figures_only


def estimable(
    workspace: Workspace, gaps: tuple[UncoveredGpuType, ...], profiles: Mapping[str, Profile]
) -> dict[str, list[str]]:
    """The GPU types for which each model can be estimated from its stored graph."""
    graphs = set(names(workspace, "graph"))
    wanted: dict[str, list[str]] = {}
    for gap in gaps:
        for model in gap.models:
            known = profiles.get(model)
            # Estimates are added only for types of which the profile has no row.
            absent = known is not None and all(row.gpu_type != gap.gpu_type for row in known.rows)
            if known is not None and known.source in graphs and gap.estimable and absent:
                wanted.setdefault(model, []).append(gap.gpu_type)
    return wanted


def transferable(
    gaps: tuple[UncoveredGpuType, ...], current: PlanRequest, wanted: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """The GPU types for which each other model can be estimated from points of types with published peaks."""
    published = set(peak_names())
    able = {
        model.name for model in current.models if any(point.gpu_type in published for point in model.points)
    }
    others: dict[str, list[str]] = {}
    for gap in gaps:
        for model in gap.models:
            if gap.estimable and model in able and gap.gpu_type not in wanted.get(model, ()):
                others.setdefault(model, []).append(gap.name)
    return others


def _render_notes(
    gaps: tuple[UncoveredGpuType, ...],
    current: PlanRequest,
    wanted: Mapping[str, list[str]],
    runnable: list[str],
    figures_only: list[str],
) -> None:
    """What the buttons do, and what to do about models that cannot be estimated."""
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
            point.gpu_type for model in current.models if model.name in figures_only for point in model.points
        }
        has = "has" if len(figures_only) == 1 else "have"
        known = f"{has} figures for {', '.join(sorted(points))} only" if points else f"{has} no figures here"
        types = " and ".join(gap.name for gap in gaps)
        text = f"{format_names(figures_only)} {known}, and no model file to estimate from."
        st.caption(
            escape_markdown(f"{text} For {types}: import measurements made there, or add the model files.")
        )


def _estimate(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    current: PlanRequest,
    profiles: Mapping[str, Profile],
    wanted: Mapping[str, list[str]],
    others: Mapping[str, list[str]],
) -> None:
    """Estimate and store figures, and add them to the draft. Raises InputFault where a graph is not the profile's."""
    known = dict(profiles)
    for model, types in wanted.items():
        source = known[model].source
        known[model] = workflow.with_estimates(known[model], read(workspace, "graph", source), types)
        workspace.put("profile", source, known[model])
    grown = edit.with_points(current, known, cuts.offers(workspace)) if wanted else current
    if others:
        to = list(dict.fromkeys(kind for types in others.values() for kind in types))
        grown, _ = workflow.with_estimated_points(grown, to)
    drafts.change(workspace, name, stored, grown)


def describe_gap(gap: UncoveredGpuType) -> str:
    """Which models have no figures for a GPU type, and what that means."""
    if gap.unusable:
        return f"No model has figures for {gap.name}: no plan can use it."
    verb = "has" if len(gap.models) == 1 else "have"
    return (
        f"{len(gap.models)} of {gap.total} models {verb} no figures for {gap.name} and cannot run on it:"
        f" {format_names(gap.models)}."
    )
