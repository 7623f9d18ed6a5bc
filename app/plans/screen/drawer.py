"""The drawer of what is chosen on the Plan page: a slice of the map, with what runs on it, how, and where else it
could run; or a model of the table."""

from __future__ import annotations

import html

import streamlit as st

from app.charts.points_svg import points_svg
from app.components import saving
from app.components.picture import picture
from app.format.html import Fact, facts_html
from app.plans.screen import model_drawer
from app.plans.screen.model_drawer import format_service_time
from app.session import scenario
from torchsplit_core import values
from torchsplit_core.pictures.numbers import escape_markdown, exact, percent, short
from torchsplit_core.pictures.slice_values import place_words, stage_loads
from torchsplit_core.planning.outcome.instances import point_key, point_table
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
    Tenant,
    profile_words,
)
from torchsplit_core.workspace.store import Workspace

MOST_ALTERNATIVES = 8
_MODEL = "model "
"""The prefix of a chosen model's name; a place begins with a number."""


def selected_place(workspace: Workspace, name: str) -> str:
    """The chosen place on the map, as in `data-place`, or the chosen model; "" for none."""
    place: str = st.session_state.get(_key(workspace, name), "")
    return place


def choose(workspace: Workspace, name: str, place: str) -> None:
    """Choose a place on the map, or unchoose the chosen one."""
    st.session_state[_key(workspace, name)] = "" if place == selected_place(workspace, name) else place


def choose_model(workspace: Workspace, name: str, model: str) -> None:
    """Choose a model of the table, or with "" none."""
    st.session_state[_key(workspace, name)] = f"{_MODEL}{model}" if model else ""


def is_open(plan: PlanOutcome | None, chosen: str) -> bool:
    """Whether what is chosen is in the plan."""
    return slice_at(plan, chosen) is not None or _planned_model(plan, chosen) is not None


def _planned_model(plan: PlanOutcome | None, chosen: str) -> values.PlannedModel | None:
    name = chosen.removeprefix(_MODEL) if chosen.startswith(_MODEL) else None
    return next((model for model in (plan.models if plan else ()) if model.name == name), None)


def slice_at(plan: PlanOutcome | None, place: str) -> tuple[PlannedGpu, PlannedSlice] | None:
    """The slice at a place of a plan; None without one."""
    start, _, identity = place.partition(" ")
    for gpu in plan.gpus if plan else ():
        for item in gpu.slices:
            if gpu.id == identity and str(item.start) == start:
                return gpu, item
    return None


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """The drawer of the slice or model that is chosen; nothing where none is."""
    chosen = selected_place(workspace, name)
    if plan is None or not is_open(plan, chosen):
        return
    placed, model = slice_at(plan, chosen), _planned_model(plan, chosen)
    title = model.name if model else f"{placed[0].id} · {place_words(placed[1])}" if placed else ""
    with st.container(border=True, key="drawer", gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.header(escape_markdown(title), anchor=False, width="stretch")
            st.button(
                "Close", icon=":material/close:", key="drawer-close", on_click=choose,
                args=(workspace, name, chosen),
            )  # fmt: skip
        if model is not None:
            model_drawer.render(workspace, request, plan, model)
        elif placed is not None:
            _slice(workspace, request, plan, *placed)


def _slice(
    workspace: Workspace, request: PlanRequest | None, plan: PlanOutcome, gpu: PlannedGpu, item: PlannedSlice
) -> None:
    if not item.tenants:
        st.caption("Nobody has this slice.")
    for number, tenant in enumerate(item.tenants):
        st.subheader(escape_markdown(tenant.model), anchor=False)
        st.html(facts_html(facts(request, plan, gpu, item, tenant)))
        if request is not None:
            _curve(workspace, request, gpu, item, tenant, number)
            _elsewhere(request, gpu, item, tenant)


def facts(
    request: PlanRequest | None, plan: PlanOutcome, gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant
) -> list[Fact]:
    """How a model runs on a slice, and the figures; values as HTML."""
    model = _model(request, tenant.model)
    point = _used(request, gpu, item, tenant)
    load = stage_loads(plan, request).get((tenant.model, tenant.stage))
    runs_as = tenant.variant if tenant.stage == tenant.variant else f"{tenant.variant} · {tenant.stage}"
    rows = [
        ("runs as", html.escape(runs_as)),
        ("batch", exact(tenant.batch_size)),
        ("processes", exact(tenant.processes)),
        ("throughput", short(tenant.throughput_rps, "req/s")),
        ("load at the demand", "n/a" if load is None else percent(load)),
        ("service time, p95", format_service_time(None if point is None else point.latency_ms, model)),
        ("memory", "n/a" if tenant.memory_gib is None else short(tenant.memory_gib, "GiB")),
        ("figures", html.escape(tenant.basis or "n/a")),
    ]
    if not equal(tenant.share, 1.0):
        rows.insert(3, ("share of the slice", percent(tenant.share)))
    return rows


def alternatives(request: PlanRequest, gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant) -> list[Point]:
    """The fastest point within the limit for the same stage on each other slice of this GPU type; fastest first."""
    model = _model(request, tenant.model)
    limit = model.max_latency_ms if model else None
    best: dict[str, Point] = {}
    for point in _points(request, tenant, gpu.type):
        late = limit is not None and point.latency_ms > limit and not equal(point.latency_ms, limit)
        if point.profile == item.profile or late:
            continue
        if point.profile not in best or point.throughput_rps > best[point.profile].throughput_rps:
            best[point.profile] = point
    return sorted(best.values(), key=lambda point: -point.throughput_rps)


def _curve(
    workspace: Workspace,
    request: PlanRequest,
    gpu: PlannedGpu,
    item: PlannedSlice,
    tenant: Tenant,
    number: int,
) -> None:
    """Throughput over service time on this slice, the plan's point large."""
    points = [point for point in _points(request, tenant, gpu.type) if point.profile == item.profile]
    used, model = _used(request, gpu, item, tenant), _model(request, tenant.model)
    colour = scenario.colours(workspace).get(tenant.model, "#888888")
    drawn = points_svg(
        f"{tenant.model} on {profile_words(item.profile)}", points, colour,
        model.max_latency_ms if model else None, [used] if used else [],
    )  # fmt: skip
    if drawn:
        key, where = f"drawer-curve-{number}", escape_markdown(profile_words(item.profile))
        with saving.exportable("Ways to run it", f"{tenant.model}.{item.profile}", key=key):
            picture(drawn, key=key)
        st.caption(f"Every known way to run it on {where}; the plan's is large.")


def _elsewhere(request: PlanRequest, gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant) -> None:
    others = alternatives(request, gpu, item, tenant)
    if not others:
        st.caption("It has no figures within its limit for another slice of this GPU.")
        return
    rows = [
        f"- on {escape_markdown(profile_words(point.profile))}: {short(point.throughput_rps, 'req/s')}"
        f" ({short(point.latency_ms, 'ms')}, batch {point.batch_size})"
        for point in others[:MOST_ALTERNATIVES]
    ]
    st.markdown("Instead, alone within its limit:\n" + "\n".join(rows))


def _points(request: PlanRequest, tenant: Tenant, gpu_type: str) -> list[Point]:
    model = _model(request, tenant.model)
    return [
        point
        for variant in (model.variants if model else ())
        if variant.name == tenant.variant
        for stage in variant.stages
        if stage.name == tenant.stage
        for point in stage.points
        if point.gpu_type == values.point_type(gpu_type)
    ]


def _used(request: PlanRequest | None, gpu: PlannedGpu, item: PlannedSlice, tenant: Tenant) -> Point | None:
    """The point of a tenant."""
    return None if request is None else point_table(request).get(point_key(gpu.type, item.profile, tenant))


def _model(request: PlanRequest | None, name: str) -> values.PlanModel | None:
    return next((model for model in (request.models if request else ()) if model.name == name), None)


def _key(workspace: Workspace, name: str) -> str:
    return f"chosen slice {workspace.id} {name}"
