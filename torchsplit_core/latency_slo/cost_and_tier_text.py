"""A plan's cost, power and tiers, as one clause each; empty if the request has no prices or no tiers."""

from __future__ import annotations

from torchsplit_core.planning.confidence.formatting import format_figure
from torchsplit_core.planning.energy.power import RULE, power_of, types_without_limit
from torchsplit_core.planning.outcome.cost import unpriced_types
from torchsplit_core.planning.request.objective import has_tiers
from torchsplit_core.values import PlanOutcome, PlanRequest


def describe_cost(request: PlanRequest, plan: PlanOutcome) -> str:
    """The cost of the GPUs in use, in the currency of the prices; names the missing prices if only some are given."""
    if plan.objective.value is None or all(entry.cost is None for entry in request.gpus):
        return ""
    missing = unpriced_types(request, plan.gpus)
    if missing:
        return f"cost n/a: no price of {', '.join(missing)}"
    if plan.cost_per_hour is None:
        return "cost n/a: this plan was made without it"
    dates = sorted({entry.cost_date for entry in request.gpus if entry.cost_date})
    dated = f" (prices of {', '.join(dates)})" if dates else ""
    cost = f"cost {format_figure(plan.cost_per_hour)} an hour{dated}"
    each = plan.cost_per_million_requests
    return cost if each is None else f"{cost}, {format_figure(each)} per million requests served"


def describe_tiers(request: PlanRequest, plan: PlanOutcome) -> str:
    """The tiers, highest first, each with the share of weight · demand that its worst-served model gets."""
    if plan.objective.value is None or not has_tiers(request):
        return ""
    worst: dict[int, float] = {}
    for spec, planned in zip(request.models, plan.models, strict=True):
        worst[spec.tier] = min(planned.normalised, worst.get(spec.tier, planned.normalised))
    of = "demand" if all(spec.weight == 1 for spec in request.models) else "weight · demand"
    tiers = (
        f"tier {tier} at least {format_figure(worst[tier])} × its {of}"
        for tier in sorted(worst, reverse=True)
    )
    return f"by tier, the highest first: {', '.join(tiers)}"


def describe_power(request: PlanRequest, plan: PlanOutcome, *, rule: bool = True) -> str:
    """The power of the plan at its demands, estimated, with its rule; n/a with the type whose limit is not known."""
    if plan.objective.value is None or not any(gpu.used for gpu in plan.gpus):
        return ""
    missing = types_without_limit(plan)
    if missing:
        return f"power n/a: no limit of {', '.join(missing)} is known"
    power = power_of(plan, {model.name: model.demand_rps for model in request.models})
    if power is None:
        return ""
    # The range is wide where cards are mostly idle, and its low end alone would read as a promise.
    most, least = (
        f"{format_figure(watts)} W, {format_figure(0.024 * watts)} kWh a day"
        for watts in (power.high_w, power.low_w)
    )
    how = f"estimated: {RULE}" if rule else "estimated"
    return f"power at most {most}; {least} at the demands if idle cards drew nothing ({how})"
