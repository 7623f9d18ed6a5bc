"""Confidence in words, shared by the command line, deployment files and pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchsplit_core.planning.confidence.assessment import ModelConfidence, PlanConfidence
from torchsplit_core.planning.confidence.next_measurement import MeasurementAdvice
from torchsplit_core.values import PlannedModel, PlanOutcome, Tenant, profile_words, tenants_on
from torchsplit_core.values.profile import Basis

MAX_NAMES = 3
"""Models that a line names; the others are counted."""


def format_figure(value: float) -> str:
    """Four significant figures, never as a power of ten below 10^10."""
    return f"{float(f'{value:.4g}'):.10g}"


def format_throughput(rps: float, low: float | None, high: float | None, basis: Basis | None) -> str:
    """A throughput with interval and basis: "120 requests/s (90 % interval 95 to 140, estimated)"."""
    ends = "interval n/a"
    if low is not None or high is not None:
        ends = f"90 % interval {_format_end(low, rps)} to {_format_end(high, rps)}"
    return f"{format_figure(rps)} requests/s ({ends}, {basis or 'basis n/a'})"


def format_models(plan: PlanOutcome) -> dict[str, str]:
    """Each model's throughput, by name, with its interval and basis."""
    bounded = bounded_models(plan)
    return {model.name: _format_model(model, model.name in bounded) for model in plan.models}


def bounded_models(plan: PlanOutcome) -> frozenset[str]:
    """The models with an instance of known interval; for the others both ends are the throughput itself."""
    return frozenset(
        tenant.model
        for *_, tenant in tenants_on(plan.gpus)
        if tenant.low_rps is not None or tenant.high_rps is not None
    )


def tenant_interval(tenant: Tenant) -> tuple[float | None, float | None]:
    """The interval of a tenant's rate: its share of its point's. None for an unknown end."""
    low = None if tenant.low_rps is None else tenant.share * tenant.low_rps
    return low, None if tenant.high_rps is None else tenant.share * tenant.high_rps


def format_tenant(tenant: Tenant) -> str:
    """A tenant's rate with its interval and basis."""
    return format_throughput(tenant.throughput_rps, *tenant_interval(tenant), tenant.basis)


def format_bases(points: Mapping[Basis, int]) -> str:
    """The basis of the figures: "42 of 42 are estimated", "all 42 are measured"."""
    total = sum(points.values())
    parts = [
        f"{points[basis]} of {total} are {basis}"
        for basis in ("estimated", "emulated")
        if points.get(basis, 0)
    ]
    return ", ".join(parts) or (f"all {total} are measured" if total else "none is known")


def format_figures_used(confidence: PlanConfidence) -> str:
    """The figures for which a plan is the best: "these figures, of which 42 of 42 are estimated"."""
    ends = "the low ends of " if confidence.plan_at == "low" else ""
    return f"{ends}these figures, of which {format_bases(confidence.point_counts)}"


def format_nominal_shortfalls(confidence: PlanConfidence) -> str:
    """Who gets less than wanted as planned; empty if nobody does."""
    less = sorted((m.share, m.name) for m in confidence.models if not m.meets)
    return format_names([f"{name} {format_share(share)}" for share, name in less])


def format_low_shortfalls(confidence: PlanConfidence) -> str:
    """Who gets less than wanted at the low end, or why that is unknown; empty if nobody does."""
    failing = format_names([f"{model.name} {format_low_share(model)}" for model in confidence.failing_low])
    if not confidence.without_interval:
        return failing
    if confidence.without_interval == confidence.in_use:
        unknown = "none of the figures used has an error range"
    else:
        verb = "has" if confidence.without_interval == 1 else "have"
        unknown = (
            f"{confidence.without_interval} of the {confidence.in_use} figures used {verb} no error range"
        )
    return f"{failing}; {unknown}" if failing else unknown


def format_names(names: Sequence[str]) -> str:
    """The first names and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def format_low_share(model: ModelConfidence) -> str:
    """The share of the wanted rate that a model gets at the low end."""
    return "100 %" if model.meets_low and model.low_share < 1 else format_share(model.low_share)


def format_share(share: float) -> str:
    """Rounded down, but never to 0 %: a failing share never reads 100 %, and a positive one never 0 %."""
    return "less than 1 %" if 0 < share < 0.01 else f"{math.floor(100 * share)} %"


def format_surest_to_fail(confidence: PlanConfidence) -> str:
    """The model that is the surest to fail, and its share at the low end."""
    model = confidence.surest_to_fail
    return (
        f"{model.name}: {format_figure(model.low_rps)} of {format_figure(model.wanted_rps)} requests/s at the low end "
        f"({format_low_share(model)})"
    )


def format_measurement(advice: MeasurementAdvice) -> str:
    """What to measure, and what it would settle."""
    plural = "process" if advice.processes == 1 else "processes"
    settles = (
        f"settles {format_figure(advice.settles_rps)} requests/s of what is missing at the low end"
        if advice.settles_rps > 0
        else "narrows the interval"
    )
    return (
        f"{advice.model}, stage {advice.stage}, on {advice.gpu_type} {profile_words(advice.profile)}, "
        f"batch {advice.batch_size}, {advice.processes} {plural}: {advice.basis}, {format_figure(advice.low_rps)} to "
        f"{format_figure(advice.high_rps)} requests/s; "
        f"{settles}"
    )


def _format_model(model: PlannedModel, bounded: bool) -> str:
    low, high = (model.low_rps, model.high_rps) if bounded else (None, None)
    return format_throughput(model.throughput_rps, low, high, model.basis)


def _format_end(value: float | None, rps: float) -> str:
    return format_figure(rps if value is None else value)
