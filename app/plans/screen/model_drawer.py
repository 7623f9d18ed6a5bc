"""The drawer of a model: what it gets on which slices, and all its points."""

from __future__ import annotations

import html
from collections import Counter

import streamlit as st

from app.charts.points_svg import points_svg
from app.components import saving
from app.components.picture import picture
from app.format.html import Fact, facts_html
from app.plans.report import points_in_use
from app.session import scenario
from torchsplit_core.pictures.numbers import escape_markdown, short
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanModel, PlannedModel, PlanOutcome, PlanRequest, profile_words
from torchsplit_core.workspace.store import Workspace


def render(workspace: Workspace, request: PlanRequest | None, plan: PlanOutcome, model: PlannedModel) -> None:
    """What a model gets, and the points of each of its stages as throughput over service time."""
    models = request.models if request else ()
    requested = next((candidate for candidate in models if candidate.name == model.name), None)
    st.html(facts_html(facts(requested, plan, model)))
    if request is None or requested is None:
        return
    used = points_in_use(request, plan)
    colour = scenario.colours(workspace).get(model.name, "#888888")
    # A model without a slice shows its first variant, the whole model.
    variants, drawn = requested.variants, False
    variant = next((candidate for candidate in variants if candidate.name == model.variant), variants[0])
    for number, stage in enumerate(variant.stages):
        markup = points_svg(
            f"{model.name} {stage.name}", stage.points, colour, requested.max_latency_ms,
            used.get((model.name, variant.name, stage.name), ()),
        )  # fmt: skip
        if markup:
            if len(variant.stages) > 1:
                st.caption(escape_markdown(stage.name))
            key = f"drawer-model-curve-{number}"
            with saving.exportable("Ways to run it", f"{model.name}.{stage.name}", key=key):
                picture(markup, key=key)
            drawn = True
    known = "Every known way to run it, a line a slice; the plan's are large."
    st.caption(known if drawn else "Nobody has figures for it: measure, estimate or import them.")


def facts(requested: PlanModel | None, plan: PlanOutcome, model: PlannedModel) -> list[Fact]:
    """What a model gets from a plan; values as HTML."""
    demand = requested.demand_rps if requested else None
    share = model.throughput_rps / demand if demand else None
    ratio = "n/a" if share is None else f"{short(share)} ×"
    if share is not None and share < 1 and not equal(share, 1.0):
        ratio = f'<span class="below">{ratio} ▾</span>'
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
        ("throughput ÷ demand", ratio),
        ("service time, p95", format_service_time(model.latency_ms, requested)),
        ("runs as", html.escape(model.variant or "not served")),
        ("slices", slices or "none"),
        ("figures", html.escape(model.basis or "n/a")),
    ]


def format_service_time(latency_ms: float | None, requested: PlanModel | None) -> str:
    """A service time beside its limit as HTML, marked where it is above."""
    p95 = "n/a" if latency_ms is None else short(latency_ms, "ms")
    if latency_ms is None or requested is None:
        return p95
    limit = requested.max_latency_ms
    if limit is None:
        return f"{p95}, no limit"
    text = f"{p95} of {short(limit, 'ms')}"
    over = latency_ms > limit and not equal(latency_ms, limit)
    return f'<span class="below">{text} ▾</span>' if over else text
