"""Targets of diving, one after the other: requests/s by model, and the most that the GPUs may cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import goal_of, has_tiers, unit_rps
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlanOutcome

LEVEL_STEPS = (0.02, 0.1, 0.25, 0.5)
"""Positions between the bound of the lowest level and the best plan at which a level is tried."""

Target = tuple[Mapping[int, float], float]
"""Requests/s by model index, and the most that the GPUs may cost."""


def targets(problem: Problem, bounds: Sequence[float | None], best: PlanOutcome | None) -> Iterator[Target]:
    """Targets better than the best plan, the highest first; none for a sum, with tiers, or without a bound."""
    goal = goal_of(problem.request)
    bound = bounds[0] if bounds else None
    fleet_cost = sum(group.cost * len(group.gpu_ids) for group in problem.groups)
    reached = None if best is None else best.objective.value
    if bound is None:
        return
    if goal.by_cost:
        yield from _cost_targets(problem, bound, fleet_cost if reached is None else reached)
    elif goal.fair and not has_tiers(problem.request):
        low = 0.0 if reached is None else max(0.0, reached)
        for part in LEVEL_STEPS:
            level = bound - part * (bound - low)
            if level > low * (1 + TOLERANCE):
                yield level_rates(problem, level), fleet_cost


def _cost_targets(problem: Problem, bound: float, reached: float) -> Iterator[Target]:
    """The minima at increasing costs from the bound, a GPU more each time."""
    minima = {
        number: spec.min_throughput_rps
        for number, spec in enumerate(problem.request.models)
        if spec.min_throughput_rps
    }
    step = min(group.cost for group in problem.groups)
    cost = bound * (1 + TOLERANCE)
    while step > 0 and cost < reached * (1 - TOLERANCE):
        yield minima, cost
        cost += step


def level_rates(problem: Problem, level: float) -> dict[int, float]:
    """The rates that put every model at this level, and no lower than its minimum."""
    rates = {}
    for number, spec in enumerate(problem.request.models):
        rate = level * unit_rps(spec)
        if spec.cap_at_demand:
            rate = min(rate, spec.demand_rps)
        rates[number] = max(rate, spec.min_throughput_rps or 0.0)
    return rates
