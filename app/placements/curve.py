"""Throughput against latency of a placement: a job traces the curve, and one of its pipelines is drawn."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.charts.frontier import FrontierDot, frontier
from app.charts.pipeline import pipeline_html
from app.components import saving
from app.components.picture import picture
from app.placements.outcome_tables import curve_table, latency_labels, unit_of
from app.session.placements import StoredPlacement, curve_of, start_curve
from app.shell import frame, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PLACEMENT_FRONTIER
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact
from torchsplit_core.values import FrontierPoint, PlacementFrontier, PlacementOutcome
from torchsplit_core.workspace.store import Workspace


def render(workspace: Workspace, placement: StoredPlacement) -> None:
    """The curve of the stored request, or the button that traces it."""
    st.header("Throughput against latency", anchor=False)
    curve = curve_of(workspace, placement)
    if curve is None:
        _render_start(workspace, placement)
        return
    if not curve.points:
        st.warning(escape_markdown(curve.message or "No pipeline was found in the time given."))
        _render_start(workspace, placement)
        return
    key = f"place-point {placement.sha256}"
    chosen = min(st.session_state.get(key, len(curve.points) - 1), len(curve.points) - 1)
    _, axis, _ = latency_labels(placement.request)
    unit = unit_of(curve)
    x_title = f"throughput{', ' + unit if unit else ''}"
    drawn = frontier(_steps(curve, chosen), f"{axis}, ms", x_title, unit, dark=widgets.is_dark())

    def choose(number: Any) -> None:
        st.session_state[key] = int(number)

    alt = "Pipelines by throughput and latency; the table below has the figures"
    widgets.chart(drawn, "Curve", f"{placement.name}.curve", key="place-curve", alt=alt, on_point=choose)
    proven = sum(point.proven for point in curve.points)
    whole = "complete: no pipeline is missing" if curve.complete else "other pipelines may lie between them"
    st.caption(
        f"{len(curve.points)} pipelines that no other beats in both, {proven} of them proven; {whole}. "
        f"Computed from {curve.basis} speeds, untested on hardware. {escape_markdown(curve.message)}"
    )
    names = [_name(point, axis, unit) for point in curve.points]
    places, label = range(len(names)), "Pipeline of the curve"
    picked = st.selectbox(label, places, chosen, format_func=names.__getitem__, key=f"{key} {chosen}")
    if picked != chosen:
        st.session_state[key] = picked
        st.rerun()
    if placement.outcome is not None and curve.points[chosen].segments == placement.outcome.segments:
        st.caption("This is the pipeline above.")
    else:
        with saving.exportable("Pipeline", f"{placement.name}.curve-pipeline", key="place-curve-pipeline"):
            markup = pipeline_html(as_outcome(curve, curve.points[chosen]), placement.request)
            picture(markup, key="place-curve-pipeline")
    with st.expander("The curve as a table"):
        rows, alt = curve_table(curve), "Points of the curve"
        saving.table(rows, f"{placement.name}.curve", key="place-curve-table", alt=alt)


def as_outcome(curve: PlacementFrontier, point: FrontierPoint) -> PlacementOutcome:
    """A point of the curve as an outcome; its bound is of latency, so throughput has none."""
    more: dict[str, Any] = {"units": curve.units, "basis": curve.basis, "latency_s": point.latency_s}
    return PlacementOutcome("feasible", point.throughput, None, None, point.segments, point.links, **more)


def _render_start(workspace: Workspace, placement: StoredPlacement) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        working = bool(jobs.running(workspace, (PLACEMENT_FRONTIER,), placement.name))
        if st.button("Trace the curve", key="place-trace", disabled=working):
            with frame.fault_boundary():
                start_curve(workspace, placement.name)
                st.rerun()
        st.caption("Shorter pipelines are quicker and carry less: what does each step of latency buy?")


def _steps(curve: PlacementFrontier, chosen: int) -> list[FrontierDot]:
    return [
        FrontierDot(
            number, point.throughput, 1e3 * point.latency_s, 1e3 * point.latency_bound_s, point.proven,
            sum(len(part.gpu_ids) for part in point.segments), number == chosen,
        )
        for number, point in enumerate(curve.points)
    ]  # fmt: skip


def _name(point: FrontierPoint, axis: str, unit: str) -> str:
    latency, segments = exact(1e3 * point.latency_s, "ms"), counted(len(point.segments), "segment")
    return f"{exact(point.throughput, unit)}, {axis} {latency}, {segments}"
