"""Exclusive plans by patterns, fair or of least cost: from a problem to integer counts with their proofs.

Applies if equal GPUs are counted together and the objective pays for nothing but throughput or GPUs; otherwise the
program of `formulation` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from torchsplit_core.planning.outcome.assignment import Assignment, assign_instances, build_planned_gpus
from torchsplit_core.planning.outcome.spread_assignment import assign_spread
from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector, fleet_capacity
from torchsplit_core.planning.patterns.equal_pools import join_equal_pools, part_equal_pools
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
    has_tiers,
    level_count,
    requires_resilience,
    tier_groups,
    unit_rps,
)
from torchsplit_core.values import Progress
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True)
class LossLimits:
    """By model the requests/s that a lost GPU must leave, and those that a stage has without its largest slice.

    `least` may differ from the `minima`: less bounds every plan too, more makes up for a GPU with several slices.
    `most`: the most slices of a (model, group, profile) in a stage, for those that could not be spread over GPUs.
    """

    minima: tuple[float, ...]
    least: tuple[float, ...]
    most: Mapping[tuple[int, int, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class PatternSolution:
    """GPUs by (group, layout) and instances by choice (its index in the problem), with what is proven.

    `profiles`: the whole layout of every (group, layout) in use. `bounds`: a proven bound of each level. `proven`: the
    number of first levels that are proven. `loss`: what the loss of a GPU must leave, if it counts.
    `search` has the patterns that are known then, with which a search of the same problem may begin; `level` is the
    first level of a fair plan.
    """

    status: SolveStatus
    layouts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    profiles: Mapping[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
    amounts: Mapping[int, int] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()
    proven: int = 0
    loss: LossLimits | None = None
    search: PatternSearch | None = field(default=None, repr=False, compare=False)
    level: float = 0.0

    def assign(self, problem: Problem, *, complete: bool = True) -> Assignment:
        """The instances on slices of the problem's GPUs.

        If a loss counts each stage is spread over many GPUs; `complete` adds instances where it would still lose too
        much.
        """
        amounts = [(problem.choices[index], count) for index, count in sorted(self.amounts.items())]
        if self.loss is not None:
            return assign_spread(problem, self.layouts, amounts, self.loss.minima, complete=complete)
        return assign_instances(problem, self.layouts, amounts)


def solve_patterns(
    problem: Problem,
    deadline: float,
    progress: Progress,
    weight_factors: Mapping[int, float] | None = None,
    loss: LossLimits | None = None,
    before: PatternSolution | None = None,
    on_counts: Callable[[float, Callable[[], PatternSolution]], None] | None = None,
) -> PatternSolution | None:
    """The fairest, or the cheapest, whole-slice plan found before `deadline`; None if patterns do not apply.

    `weight_factors` multiplies the requests/s that a level of 1 needs of a model (by index), also in the bounds.
    With `loss` each stage keeps its least without its largest slice. A plan that survives the loss of any GPU does, so
    bounds without `most` hold for it; whether a plan of these counts survives depends on how they are spread over GPUs.
    `before`: a solution of the same problem with other limits, with whose patterns and level the search begins.
    `on_counts` gets the first level of each better plan, and what makes its counts, in place of the problem's `report`.
    """
    request = problem.request
    if not goal_of(request).fair and not goal_of(request).by_cost:
        return None
    separate = build_search(problem, weight_factors or {}, loss)
    if separate is None:
        return None
    # How many slices of a GPU group a stage may have counts where a loss must be survived.
    search, members = join_equal_pools(separate) if loss is None else (separate, [])
    if before is not None and before.search is not None:
        search.take_patterns(before.search)

    def counted(plan: PatternPlan) -> PatternSolution:
        parted = part_equal_pools(plan, members, separate) if members else plan
        return replace(_to_solution(problem, separate, parted), loss=loss, search=search)

    def report(level: float, plan: PatternPlan) -> None:
        if on_counts is not None:
            on_counts(level, lambda: counted(plan))
        else:
            problem.report(level, lambda: build_planned_gpus(request, counted(plan).assign(problem)))

    search.on_better = report
    if goal_of(request).by_cost:
        cheapest = cheapest_plan(search, [group.cost for group in problem.groups], deadline)
        if cheapest.plan is None:
            return PatternSolution("infeasible" if cheapest.infeasible else "timeout")
        status: SolveStatus = "optimal" if cheapest.proven else "feasible"
        return replace(
            counted(cheapest.plan), status=status, bounds=(cheapest.bound,), proven=int(cheapest.proven)
        )
    count = level_count(request)
    level_result = raise_levels(
        search,
        tier_groups(request.models),
        count,
        deadline,
        lambda part: progress(part, "Raising the worst-served models"),
        before.level if before is not None and not has_tiers(request) else 0.0,
    )
    if level_result.infeasible:
        return PatternSolution("infeasible")
    if level_result.plan is None:
        return PatternSolution("timeout")
    bounds, proven = tuple(level_result.bounds), level_result.proven
    status = "optimal" if proven == count else "feasible"
    return replace(
        counted(level_result.plan), status=status, bounds=bounds, proven=proven, level=level_result.levels[0]
    )


@dataclass(frozen=True)
class MinimaSearch:
    """Whole-slice plans of one problem for changing minima: each search begins with the patterns of those before."""

    problem: Problem
    separate: PatternSearch
    search: PatternSearch
    members: Sequence[Sequence[int]]

    @classmethod
    def of(cls, problem: Problem) -> MinimaSearch | None:
        """The search of a problem; None if patterns do not apply."""
        separate = build_search(problem, {})
        if separate is None:
            return None
        search, members = join_equal_pools(separate)
        return cls(problem, separate, search, members)

    @property
    def costs(self) -> Vector:
        """Of a GPU by group."""
        return np.array([group.cost for group in self.problem.groups])

    def set_minima(self, minima: Vector) -> None:
        """Seek plans with these requests/s by model from here on."""
        for search in (self.search, self.separate):
            search.demand = replace(search.demand, minima=minima.copy())

    def assign(self, plan: PatternPlan) -> Assignment:
        """The plan's instances on slices of the problem's GPUs."""
        parted = part_equal_pools(plan, self.members, self.separate)
        return _to_solution(self.problem, self.separate, parted).assign(self.problem)


def patterns_meet_minima(problem: Problem, deadline: float) -> bool | None:
    """Whether whole slices can meet every minimum; None if unknown in time or patterns do not apply."""
    separate = build_search(problem, {})
    if separate is None:
        return None
    search, _ = join_equal_pools(separate)
    verdict = search.decide(FeasibilityProblem((0.0,)), deadline, prove=True).verdict
    return None if verdict == "unknown" else verdict == "found"


def build_search(
    problem: Problem, weight_factors: Mapping[int, float], loss: LossLimits | None = None
) -> PatternSearch | None:
    """The search for a problem; None if GPUs are told apart or the objective pays for memory.

    Patterns count slices of equal GPUs together, so they know of the loss of a GPU only `loss`.
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
    options = build_options(problem, capacity, () if loss is None else loss.least)
    if options is None or not len(capacity.pools):
        return None
    start = 1.0 / np.maximum(capacity.max_slices, 1)
    scale = np.array([weight_factors.get(index, 1.0) for index in range(len(request.models))])
    most = np.tile(capacity.max_slices, (len(request.models), 1))
    for (model, group, profile), count in ({} if loss is None else loss.most).items():
        most[model, capacity.pools.index((group, profile))] = count
    return PatternSearch(capacity, options, _level_demand(problem, capacity, options, scale), start, most)


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
    amounts = dict(search.instance_counts(plan, range(len(plan.patterns))))
    layouts = {search.capacity.columns[c]: int(plan.layouts[c]) for c in np.flatnonzero(plan.layouts)}
    profiles = {key: problem.groups[key[0]].layouts[key[1]].profiles for key in layouts}
    return PatternSolution("feasible", layouts, profiles, amounts)
