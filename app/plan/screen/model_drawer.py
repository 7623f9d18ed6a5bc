"""What the drawer says of a model: what it gets on which slices, and all it could run at."""

from __future__ import annotations

import html
from collections import Counter

import streamlit as st

from app.charts.points_svg import points_svg
from app.components import saving
from app.components.picture import picture
from app.format.html import Fact, facts_html
from app.plan.report import points_in_use
from app.session import scenario
from torchsplit_core.pictures.numbers import escape_markdown, short
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanModel, PlannedModel, PlanOutcome, PlanRequest, profile_words
from torchsplit_core.workspace.store import Workspace


def show(workspace: Workspace, request: PlanRequest | None, plan: PlanOutcome, model: PlannedModel) -> None:
    """What a model gets, and of every stage that it runs in its throughput over the service time."""
    asked = next((one for one in request.models if one.name == model.name), None) if request else None
    st.html(facts_html(facts(asked, plan, model)))
    if request is None or asked is None:
        return
    used = points_in_use(request, plan)
    colour = scenario.colours(workspace).get(model.name, "#888888")
    # Of a model without a slice the ways of its first variant, the whole model.
    variant = next((one for one in asked.variants if one.name == model.variant), asked.variants[0])
    drawn = False
    for number, stage in enumerate(variant.stages):
        markup = points_svg(
            f"{model.name} {stage.name}", stage.points, colour, asked.max_latency_ms,
            used.get((model.name, variant.name, stage.name), ()),
        )  # fmt: skip
        if markup:
            if len(variant.stages) > 1:
                st.caption(escape_markdown(stage.name))
            with saving.saved(
                "Ways to run it", f"{model.name}.{stage.name}", key=f"drawer-model-curve-{number}"
            ):
                picture(markup, key=f"drawer-model-curve-{number}")
            drawn = True
    st.caption(
        "Every known way to run it, a line a slice; the plan's are large."
        if drawn
        else "Nobody has figures for it: measure, estimate or import them."
    )


def facts(asked: PlanModel | None, plan: PlanOutcome, model: PlannedModel) -> list[Fact]:
    """What a model gets from a plan; values as HTML."""
    demand = asked.demand_rps if asked else None
    share = model.throughput_rps / demand if demand else None
    told = "n/a" if share is None else f"{short(share)} ×"
    if share is not None and share < 1 and not equal(share, 1.0):
        told = f'<span class="below">{told} ▾</span>'
    runs = Counter(
        (gpu.type, item.profile)
        for gpu in plan.gpus
        for item in gpu.slices
        if any(tenant.model == model.name for tenant in item.tenants)
    )
    slices = "<br>".join(
        html.escape(f"{count} × {profile_words(profile)}, {kind}") for (kind, profile), count in runs.items()
    )
    return [
        ("throughput", short(model.throughput_rps, "req/s")),
        ("demand", "n/a" if demand is None else short(demand, "req/s")),
        ("throughput ÷ demand", told),
        ("service time, p95", service_time(model.latency_ms, asked)),
        ("runs as", html.escape(model.variant or "not served")),
        ("slices", slices or "none"),
        ("figures", html.escape(model.basis or "n/a")),
    ]


def service_time(latency_ms: float | None, asked: PlanModel | None) -> str:
    """A service time beside its limit as HTML, marked where it is over."""
    p95 = "n/a" if latency_ms is None else short(latency_ms, "ms")
    if latency_ms is None or asked is None:
        return p95
    limit = asked.max_latency_ms
    if limit is None:
        return f"{p95}, no limit"
    told = f"{p95} of {short(limit, 'ms')}"
    over = latency_ms > limit and not equal(latency_ms, limit)
    return f'<span class="below">{told} ▾</span>' if over else told
