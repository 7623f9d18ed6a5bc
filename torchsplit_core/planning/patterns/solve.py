"""Exclusive plans by patterns, fair or of least cost: from a problem to integer counts with their proofs.

Applies if equal GPUs are counted together and the objective pays for nothing but throughput or GPUs; otherwise the
program of `formulation` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from torchsplit_core.planning.outcome.assignment import Assignment, assign_instances, build_planned_gpus
from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector, fleet_capacity
from torchsplit_core.planning.patterns.feasibility import (
    FeasibilityProblem,
    LevelDemand,
    PatternPlan,
    PatternSearch,
)
from torchsplit_core.planning.patterns.least_cost import cheapest_plan
from torchsplit_core.planning.patterns.leximin_levels import raise_levels
from torchsplit_core.planning.patterns.options import ModelOption, ModelOptions, build_options
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import (
    goal_of,
    level_count,
    requires_resilience,
    tier_groups,
    unit_rps,
)
from torchsplit_core.values import Progress
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True)
class PatternSolution:
    """GPUs by (group, layout) and instances by choice (its index in the problem), with what is proven.

    `profiles`: the whole layout of every (group, layout) in use. `bounds`: a proven bound of each level. `proven`: the
    number of first levels that are proven.
    """

    status: SolveStatus
    layouts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    profiles: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    amounts: Mapping[int, int] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()
    proven: int = 0

    def assign(self, problem: Problem) -> Assignment:
        """The instances on slices of the problem's GPUs."""
        amounts = [(problem.choices[index], count) for index, count in sorted(self.amounts.items())]
        return assign_instances(problem, self.layouts, amounts)


def solve_patterns(
    problem: Problem, deadline: float, progress: Progress, weight_factors: Mapping[int, float] | None = None
) -> PatternSolution | None:
    """The fairest, or the cheapest, whole-slice plan found before `deadline`; None if patterns do not apply.

    `weight_factors` multiplies the requests/s that a level of 1 needs of a model (by index), also in the bounds.
    """
    request = problem.request
    if not goal_of(request).fair and not goal_of(request).by_cost:
        return None
    search = build_search(problem, weight_factors or {})
    if search is None:
        return None
    search.on_better = lambda level, plan: problem.report(
        level, lambda: build_planned_gpus(request, _to_solution(problem, search, plan).assign(problem))
    )
    if goal_of(request).by_cost:
        return _to_cheapest(problem, search, deadline)
    count = level_count(request)
    level_result = raise_levels(
        search,
        tier_groups(request.models),
        count,
        deadline,
        lambda part: progress(part, "Raising the worst-served models"),
    )
    if level_result.infeasible:
        return PatternSolution("infeasible")
    if level_result.plan is None:
        return PatternSolution("timeout")
    bounds, proven = tuple(level_result.bounds), level_result.proven
    counts = _to_solution(problem, search, level_result.plan)
    return replace(counts, status="optimal" if proven == count else "feasible", bounds=bounds, proven=proven)


def _to_cheapest(problem: Problem, search: PatternSearch, deadline: float) -> PatternSolution:
    cheapest = cheapest_plan(search, [group.cost for group in problem.groups], deadline)
    if cheapest.infeasible:
        return PatternSolution("infeasible")
    if cheapest.plan is None:
        return PatternSolution("timeout")
    counts = _to_solution(problem, search, cheapest.plan)
    status: SolveStatus = "optimal" if cheapest.proven else "feasible"
    return replace(counts, status=status, bounds=(cheapest.bound,), proven=int(cheapest.proven))


def patterns_meet_minima(problem: Problem, deadline: float) -> bool | None:
    """Whether whole slices can meet every minimum; None if unknown in time or patterns do not apply."""
    search = build_search(problem, {})
    if search is None:
        return None
    verdict = search.decide(FeasibilityProblem((0.0,)), deadline, prove=True).verdict
    return None if verdict == "unknown" else verdict == "found"


def build_search(problem: Problem, weight_factors: Mapping[int, float]) -> PatternSearch | None:
    """The search for a problem; None if GPUs are told apart or the objective pays for memory.

    Patterns count slices of equal GPUs together, so they do not know what the loss of a GPU takes.
    """
    request = problem.request
    gamma = request.objective.memory_violation_penalty
    if (
        request.colocations
        or requires_resilience(request)
        or (gamma and any(choice.excess_gib > 0 for choice in problem.choices))
    ):
        return None
    capacity = fleet_capacity(problem)
    options = build_options(problem, capacity)
    if options is None or not len(capacity.pools):
        return None
    start = 1.0 / np.maximum(capacity.max_slices, 1)
    scale = np.array([weight_factors.get(index, 1.0) for index in range(len(request.models))])
    return PatternSearch(capacity, options, _level_demand(problem, capacity, options, scale), start)


def _level_demand(
    problem: Problem, capacity: FleetCapacity, options: tuple[ModelOptions, ...], scale: Vector
) -> LevelDemand:
    models = problem.request.models
    units = np.array([unit_rps(spec) for spec in models]) * scale
    minima = np.array([spec.min_throughput_rps or 0.0 for spec in models])
    caps = np.array([spec.demand_rps if spec.cap_at_demand else float("inf") for spec in models]) / units
    whole = np.array(
        [
            max((_whole_fleet_rps(capacity, option) for option in model_options.options), default=0.0)
            for model_options in options
        ]
    )
    tiers = np.array([spec.tier for spec in models])
    return LevelDemand(units, minima, caps, np.minimum(caps, whole / units), tiers)


def _whole_fleet_rps(capacity: FleetCapacity, option: ModelOption) -> float:
    """An upper bound of the option's rate with the whole fleet to itself, in each stage."""
    return min(capacity.worth(offer.rates) for offer in option.stages)


def _to_solution(problem: Problem, search: PatternSearch, plan: PatternPlan) -> PatternSolution:
    amounts: dict[int, int] = {}
    for model, pattern in enumerate(plan.patterns):
        for stage, counts in enumerate(pattern.stages):
            offer = search.options[model].options[pattern.option].stages[stage]
            for pool in np.flatnonzero(counts):
                choice = offer.choices[pool]
                amounts[choice] = amounts.get(choice, 0) + int(counts[pool])
    layouts = {search.capacity.columns[c]: int(plan.layouts[c]) for c in np.flatnonzero(plan.layouts)}
    profiles = {key: problem.groups[key[0]].layouts[key[1]].profiles for key in layouts}
    return PatternSolution("feasible", layouts, profiles, amounts)
