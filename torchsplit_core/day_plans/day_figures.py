"""The figures of a day: GPU-hours, how well the worst model is served, what the changes lose, costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum

from torchsplit_core.day_plans.least_change import used_gpus
from torchsplit_core.day_plans.window_requests import served_rates, windows_of
from torchsplit_core.planning.energy.power import power_of
from torchsplit_core.values import (
    BothSides,
    DayOutcome,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Transition,
)
from torchsplit_core.values.day.outcome import EnergyOfSides, EnergyRange
from torchsplit_core.values.simulation.engine import mean_tokens

SECONDS_PER_HOUR = 3600.0
WATTS_PER_KILOWATT = 1000.0


def with_figures(request: PlanRequest, outcome: DayOutcome) -> DayOutcome:
    """The outcome with all figures that follow from its plans and transitions."""
    hours = [window.hours for window in windows_of(request)]
    plans, static = [window.plan for window in outcome.windows], outcome.static
    sides = (plans, [static] * len(plans))
    costs = [_cost_per_day(side, hours) for side in sides]
    requests = [_served_per_day(request, side, {}) for side in sides]
    by_model = _output_tokens(request)
    tokens = [_served_per_day(request, side, by_model) if by_model else None for side in sides]
    return replace(
        outcome,
        gpu_hours=BothSides(*(_gpu_hours(side, hours) for side in sides)),
        worst_normalised=BothSides(worst_served(plans), worst_served([static])),
        lost_requests=_lost(outcome),
        cost_per_day=_both(costs),
        cost_per_million_requests=_both(list(map(_per_million, costs, requests))),
        cost_per_million_output_tokens=_both(list(map(_per_million, costs, tokens))),
        energy_kwh_per_day=_energy_of(*(_energy(request, side) for side in sides)),
    )


def lost_in(transition: Transition) -> float:
    """Requests of the demand that a transition leaves unserved while it is carried out, estimated.

    The integral of max(0, demand − throughput), which is the model-seconds below demand times the demand.
    """
    return fsum(
        (item.model_seconds_below_demand or 0.0) * (item.demand_rps or 0.0) for item in transition.during
    )


def _gpu_hours(plans: Sequence[PlanOutcome], hours: Sequence[float]) -> float | None:
    if not all(plan.gpus for plan in plans):
        return None
    return fsum(used_gpus(plan) * length for plan, length in zip(plans, hours, strict=True))


def worst_served(plans: Sequence[PlanOutcome]) -> float | None:
    """The least r of any model in these plans; None where one of them is missing."""
    if not all(plan.gpus for plan in plans):
        return None
    return min(model.normalised for plan in plans for model in plan.models)


def _lost(outcome: DayOutcome) -> float | None:
    changes = [window.transition for window in outcome.windows]
    known = [change for change in changes if change is not None and change.status != "infeasible"]
    return fsum(map(lost_in, known)) if len(known) == len(changes) else None


def _cost_per_day(plans: Sequence[PlanOutcome], hours: Sequence[float]) -> float | None:
    costs = [plan.cost_per_hour for plan in plans]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    return fsum(cost * length for cost, length in zip(known, hours, strict=True))


def _energy(request: PlanRequest, plans: Sequence[PlanOutcome]) -> EnergyRange | None:
    """kWh of a day while what arrives in each window is served; None where a plan or the limit of a card is missing."""
    powers = [
        (power_of(plan, served_rates(request, window.name)), window.hours)
        for window, plan in zip(windows_of(request), plans, strict=True)
    ]
    known = [(power, hours) for power, hours in powers if power is not None]
    if len(known) < len(powers):
        return None
    return EnergyRange(
        fsum(power.low_w * hours for power, hours in known) / WATTS_PER_KILOWATT,
        fsum(power.high_w * hours for power, hours in known) / WATTS_PER_KILOWATT,
    )


def _energy_of(windows: EnergyRange | None, static: EnergyRange | None) -> EnergyOfSides | None:
    return None if windows is None and static is None else EnergyOfSides(windows, static)


def _served_per_day(
    request: PlanRequest, plans: Sequence[PlanOutcome], weights: dict[str, float]
) -> float | None:
    """Requests served in a day, each times its model's weight (1 without weights): of what arrives in a window, at
    most the throughput."""
    if not all(plan.gpus for plan in plans):
        return None
    total = []
    for window, plan in zip(windows_of(request), plans, strict=True):
        rates = served_rates(request, window.name)
        total += [
            min(model.throughput_rps, rates[model.name])
            * weights.get(model.name, 1.0)
            * window.hours
            * SECONDS_PER_HOUR
            for model in plan.models
        ]
    return fsum(total)


def _output_tokens(request: PlanRequest) -> dict[str, float]:
    """Mean tokens of an answer by model; empty where a model is no LLM, or has no lengths."""
    means = {model.name: _mean_output(model) for model in request.models}
    known = {name: mean for name, mean in means.items() if mean is not None}
    return known if len(known) == len(means) else {}


def _mean_output(model: PlanModel) -> float | None:
    tokens = None if model.llm is None else model.llm.output_tokens
    return None if tokens is None else mean_tokens(tokens)


def _per_million(cost: float | None, served: float | None) -> float | None:
    return cost / (served / 1e6) if cost is not None and served else None


def _both(figures: Sequence[float | None]) -> BothSides | None:
    """The figures of both sides; None where neither is known."""
    return None if all(figure is None for figure in figures) else BothSides(*figures)
