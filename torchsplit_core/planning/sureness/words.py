"""How sure a plan is, in the words that command line, deployment files and pages share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchsplit_core.planning.sureness.measurement import Measurement
from torchsplit_core.planning.sureness.verdict import ModelSureness, Sureness
from torchsplit_core.values import PlannedModel, PlanOutcome, Tenant
from torchsplit_core.values.profile import Basis

MOST_NAMES = 3
"""Models that a line of words names one by one."""


def figure(value: float) -> str:
    """Four significant figures, never as a power of ten below 10^10."""
    return f"{float(f'{value:.4g}'):.10g}"


def throughput_words(rps: float, low: float | None, high: float | None, basis: Basis | None) -> str:
    """A throughput with what it rests on: "120 requests/s (90 % interval 95 to 140, estimated)"."""
    ends = "interval n/a"
    if low is not None or high is not None:
        ends = f"90 % interval {_end(low, rps)} to {_end(high, rps)}"
    return f"{figure(rps)} requests/s ({ends}, {basis or 'basis n/a'})"


def model_words(plan: PlanOutcome) -> dict[str, str]:
    """What each model gets, by name, with its interval and basis."""
    bounded = bounded_models(plan)
    return {model.name: _model(model, model.name in bounded) for model in plan.models}


def bounded_models(plan: PlanOutcome) -> frozenset[str]:
    """The models with an instance whose interval is known: of the others both ends are the throughput itself."""
    return frozenset(
        tenant.model
        for gpu in plan.gpus
        for item in gpu.slices
        for tenant in item.tenants
        if tenant.low_rps is not None or tenant.high_rps is not None
    )


def tenant_interval(tenant: Tenant) -> tuple[float | None, float | None]:
    """The interval of what a tenant gives: its share of its point's. None for an end that nobody knows."""
    low = None if tenant.low_rps is None else tenant.share * tenant.low_rps
    return low, None if tenant.high_rps is None else tenant.share * tenant.high_rps


def tenant_words(tenant: Tenant) -> str:
    """What a tenant gives, with its interval and basis."""
    return throughput_words(tenant.throughput_rps, *tenant_interval(tenant), tenant.basis)


def basis_words(points: Mapping[Basis, int]) -> str:
    """What the figures are: "42 of 42 are estimated", "all 42 are measured"."""
    total = sum(points.values())
    told = [
        f"{points[basis]} of {total} are {basis}"
        for basis in ("estimated", "emulated")
        if points.get(basis, 0)
    ]
    return ", ".join(told) or (f"all {total} are measured" if total else "none is known")


def figures_words(found: Sureness) -> str:
    """What a plan is the best for: "these figures, of which 42 of 42 are estimated"."""
    ends = "the low ends of " if found.plan_at == "low" else ""
    return f"{ends}these figures, of which {basis_words(found.points)}"


def nominal_words(found: Sureness) -> str:
    """Who gets less than wanted as planned; empty where nobody does."""
    less = sorted((m.share, m.name) for m in found.models if not m.meets)
    return named([f"{name} {share_percent(share)}" for share, name in less])


def low_words(found: Sureness) -> str:
    """Who gets less than wanted at the low end, or why that is not known; empty where everybody has it."""
    failing = named([f"{model.name} {low_percent(model)}" for model in found.failing_low])
    if not found.without_interval:
        return failing
    if found.without_interval == found.in_use:
        bare = "none of the figures used has an error range"
    else:
        verb = "has" if found.without_interval == 1 else "have"
        bare = f"{found.without_interval} of the {found.in_use} figures used {verb} no error range"
    return f"{failing}; {bare}" if failing else bare


def named(told: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(told) - MOST_NAMES
    return ", ".join(told[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def low_percent(model: ModelSureness) -> str:
    """What of the wanted a model has at the low end."""
    return "100 %" if model.meets_low and model.low_share < 1 else share_percent(model.low_share)


def share_percent(share: float) -> str:
    """Rounded down: what fails never reads 100 %, and what is there never 0 %."""
    return "less than 1 %" if 0 < share < 0.01 else f"{math.floor(100 * share)} %"


def surest_words(found: Sureness) -> str:
    """The model that is the surest to fail, and what it has at the low end."""
    model = found.surest_to_fail
    return (
        f"{model.name}: {figure(model.low_rps)} of {figure(model.wanted_rps)} requests/s at the low end "
        f"({low_percent(model)})"
    )


def measurement_words(found: Measurement) -> str:
    """What to measure, and what that would settle."""
    plural = "process" if found.processes == 1 else "processes"
    settles = (
        f"settles {figure(found.settles_rps)} requests/s of what is missing at the low end"
        if found.settles_rps > 0
        else "narrows the interval"
    )
    return (
        f"{found.model}, stage {found.stage}, on {found.gpu_type} {found.profile}, batch {found.batch_size}, "
        f"{found.processes} {plural}: {found.basis}, {figure(found.low_rps)} to {figure(found.high_rps)} requests/s; "
        f"{settles}"
    )


def _model(model: PlannedModel, bounded: bool) -> str:
    low, high = (model.low_rps, model.high_rps) if bounded else (None, None)
    return throughput_words(model.throughput_rps, low, high, model.basis)


def _end(value: float | None, rps: float) -> str:
    return figure(rps if value is None else value)
