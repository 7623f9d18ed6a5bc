"""Plans of whole slices with hard co-locations, bounded level by level over fillings of GPUs, on few GPUs proven.

They begin with a plan of whole sets (patterns/colocated.py), which on more than a few GPUs is the better search. Plans
that survive the loss of a GPU have only the proofs of few GPUs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torchsplit_core.planning.exclusive.gpu_counts import MAX_GPUS, GpuCounts
from torchsplit_core.planning.exclusive.level_questions import raise_by_questions
from torchsplit_core.planning.outcome.assignment import Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.patterns.colocated import hard_sets, plan_colocated
from torchsplit_core.planning.patterns.feasibility import Decision
from torchsplit_core.planning.patterns.gpu_fillings import FillingSearch, search_fillings
from torchsplit_core.planning.patterns.least_cost import cheapest_plan
from torchsplit_core.planning.patterns.leximin_levels import LevelResult, divisible_bound, raise_levels
from torchsplit_core.planning.patterns.solve import LossLimits, build_search
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import (
    goal_of,
    has_penalties,
    level_count,
    leximin_values,
    requires_resilience,
    tier_groups,
)
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.values import PlanRequest, Progress
from torchsplit_core.values.status import SolveStatus

FEW_FILLINGS, FIRST_SHARE = 1_500, 0.3
"""Fillings that come first, and part of the time for their first level: if it is proven then, they have the rest."""

EQUAL_GPUS = 4
"""GPUs of a kind, in the mean, from which on fillings come before questions: they take those GPUs together, which
questions tell apart."""

LEVEL_DIGITS = 9
"""Decimal places in which equal levels agree, however they were summed."""

SETS_SHARE, MIN_SETS_S, FEW_GPUS = 0.3, 1.0, 16
"""Part of the time, and least seconds of it, for a plan of whole sets; GPUs up to which those are enough."""


@dataclass(frozen=True)
class FilledPlan:
    """The plan, of a problem whose layouts tell no presence, bounds of its levels, and how many are proven."""

    problem: Problem
    status: SolveStatus
    assignment: Assignment | None = None
    bounds: tuple[float, ...] = ()
    proven: int = 0


@dataclass(frozen=True)
class RaisedPlan:
    """A plan with its levels, bounds of them, and how many first levels are proven."""

    assignment: Assignment | None = None
    levels: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()
    proven: int = 0
    infeasible: bool = False

    @classmethod
    def of(cls, raised: LevelResult, assignment: Assignment | None) -> RaisedPlan:
        """The levels' plan, as an assignment."""
        levels, bounds = tuple(raised.levels), tuple(raised.bounds)
        return cls(assignment, levels, bounds, raised.proven, raised.infeasible)

    @property
    def rank(self) -> tuple[bool, list[float], int]:
        """Higher is better: that there is one, its levels (but for rounding), what is proven."""
        return self.assignment is not None, [round(level, LEVEL_DIGITS) for level in self.levels], self.proven


def surviving_counts(problem: Problem, free: Problem) -> GpuCounts | None:
    """The GPUs one by one, any of which may be lost; None where questions do not apply to the request.

    `free`: the problem without the loss and co-locations.
    """
    request = problem.request
    if not (requires_resilience(request) and goal_of(request).fair and _levels_decide(request)):
        return None
    if len(list_gpus(request.gpus)) > MAX_GPUS:
        return None
    minima = tuple(spec.min_throughput_rps or 0.0 for spec in request.models)
    # Patterns that keep each minimum without the largest slice.
    base = build_search(free, {}, LossLimits(minima, minima))
    sets = hard_sets(problem.colocation_index, len(request.models)) if request.colocations else ()
    return None if base is None or sets is None else GpuCounts.of(base, sets, None, minima)


def raise_surviving(
    problem: Problem,
    free: Problem,
    counts: GpuCounts,
    start: Assignment | None,
    bound: float,
    deadline: float,
    progress: Progress,
) -> FilledPlan:
    """The plan that survives the loss of any GPU, raised by questions.

    `start`: a plan to begin with; `bound`: of the first level.
    """
    request = problem.request
    uncounted = replace(free, request=request, colocation_index=problem.colocation_index)
    raising = _Raising(problem, free, uncounted, None, counts, deadline, progress, bound=bound)
    return raising.ask_alone(start)


def plan_fillings(problem: Problem, deadline: float, progress: Progress) -> FilledPlan | None:
    """The plan found before the deadline; None if neither fillings nor questions apply to the request."""
    request = problem.request
    sets = hard_sets(problem.colocation_index, len(request.models)) if _applies(request) else None
    if sets is None:
        return None
    free = build_problem(replace(request, colocations=()))
    base = build_search(free, {})
    if base is None:
        return None
    uncounted = replace(free, request=request, colocation_index=problem.colocation_index)
    fillings = search_fillings(base, sets)
    if fillings is not None:
        fillings.search.on_better = lambda value, plan: problem.report(
            value, lambda: build_planned_gpus(request, fillings.assign(uncounted, plan))
        )
    if not goal_of(request).by_cost:
        counts = GpuCounts.of(base, sets, fillings)
        if fillings is None and counts is None:
            return None
        planned = _Raising(problem, free, uncounted, fillings, counts, deadline, progress).run()
        if planned.status == "timeout" and not planned.bounds:
            # A plan from elsewhere has a bound then.
            planned = replace(planned, bounds=(divisible_bound(base, tier_groups(request.models)),))
        return planned
    if fillings is None:
        return None
    cheapest = cheapest_plan(fillings.search, [group.cost for group in problem.groups], deadline)
    if cheapest.plan is None:
        return FilledPlan(uncounted, "infeasible" if cheapest.infeasible else "timeout")
    status: SolveStatus = "optimal" if cheapest.proven else "feasible"
    assignment = fillings.assign(uncounted, cheapest.plan)
    return FilledPlan(uncounted, status, assignment, (cheapest.bound,), int(cheapest.proven))


@dataclass
class _Raising:
    """The levels of a request, raised by one search after the other until all are proven."""

    problem: Problem
    free: Problem
    uncounted: Problem
    fillings: FillingSearch | None
    counts: GpuCounts | None
    deadline: float
    progress: Progress
    best: RaisedPlan = RaisedPlan()
    bound: float = math.inf
    """Of the first level."""
    infeasible: bool = False

    def run(self) -> FilledPlan:
        """Few fillings come first: they are often proven in less time than sets take."""
        steps: list[Callable[[], None]] = [self._plan_sets, self._ask, self._raise_fillings]
        gpus = [len(group.gpu_ids) for group in self.free.groups]
        if self.fillings is not None and len(self.fillings.fillings) <= FEW_FILLINGS:
            steps.insert(0, self._raise_first)
        elif self.fillings is not None and EQUAL_GPUS * len(gpus) <= sum(gpus) <= MAX_GPUS:
            steps.insert(1, self._raise_first)
        for step in steps:
            if not self._is_proven():
                step()
        return self._planned()

    def ask_alone(self, start: Assignment | None) -> FilledPlan:
        """Questions from a plan on, and nothing else."""
        self._ask_from(start)
        return self._planned()

    def _planned(self) -> FilledPlan:
        if self.best.assignment is None:
            if self.infeasible:
                return FilledPlan(self.uncounted, "infeasible")
            return FilledPlan(
                self.uncounted, "timeout", bounds=(self.bound,) if self.bound < math.inf else ()
            )
        bounds = self.best.bounds
        if not self.best.proven and self.bound < math.inf:
            bounds = (max(self.bound, self.best.levels[0]), *bounds[1:])
        proven = self.best.proven == level_count(self.problem.request)
        status: SolveStatus = "optimal" if proven else "feasible"
        return FilledPlan(self.uncounted, status, self.best.assignment, bounds, self.best.proven)

    def _take(self, plan: RaisedPlan) -> None:
        self.infeasible |= plan.infeasible
        if plan.bounds:
            self.bound = min(self.bound, plan.bounds[0])
        best, other = (plan, self.best) if plan.rank > self.best.rank else (self.best, plan)
        first = best.proven
        if other.proven == first and max(len(best.bounds), len(other.bounds)) > first:
            # What bounds the first open level bounds it in every plan that has the levels before it.
            open_bound = min((*best.bounds[first : first + 1], *other.bounds[first : first + 1]))
            best = replace(best, bounds=(*best.bounds[:first], open_bound, *best.bounds[first + 1 :]))
        self.best = best

    def _is_proven(self) -> bool:
        """Whether nothing is left to prove."""
        return self.infeasible or self.best.proven == level_count(self.problem.request)

    def _plan_sets(self) -> None:
        request = self.problem.request
        until = min(self.deadline, time.perf_counter() + MIN_SETS_S)
        if len(list_gpus(request.gpus)) > FEW_GPUS:
            until = max(until, partial_deadline(self.deadline, SETS_SHARE))
        planned = plan_colocated(self.problem, until, self.progress, self.free)
        if planned is None:
            return
        self.bound = min(self.bound, planned.bounds[0])
        rates = [model.throughput_rps for model in build_planned_models(planned.problem, planned.assignment)]
        self._take(RaisedPlan(planned.assignment, tuple(leximin_values(request, rates))))

    def _ask(self) -> None:
        self._ask_from(self.best.assignment)

    def _ask_from(self, start: Assignment | None) -> None:
        request, counts = self.problem.request, self.counts
        if counts is None:
            return
        raised = raise_by_questions(
            counts,
            tier_groups(request.models),
            level_count(request),
            None if start is None else counts.plan_of(self.free, build_planned_gpus(request, start)),
            self.bound,
            self.deadline,
            lambda value, plan: self.problem.report(
                value, lambda: build_planned_gpus(request, counts.assign(self.uncounted, plan))
            ),
        )
        assignment = None
        if raised.gpu_plan is not None:
            assignment = counts.assign(self.uncounted, raised.gpu_plan)
        self._take(RaisedPlan.of(raised, assignment))

    def _raise_first(self) -> None:
        self._raise_fillings(partial_deadline(self.deadline, FIRST_SHARE))

    def _raise_fillings(self, first_until: float = math.inf) -> None:
        """The levels over fillings, from the best plan on; no more than the first if it is open by `first_until`."""
        request, fillings = self.problem.request, self.fillings
        if fillings is None:
            return
        start = (
            None if self.best.assignment is None else fillings.plan_of(self.uncounted, self.best.assignment)
        )
        raised = raise_levels(
            fillings.search,
            tier_groups(request.models),
            level_count(request),
            self.deadline,
            lambda part: self.progress(part, "Raising the worst-served models"),
            start=None if start is None else Decision("found", start),
            known=() if start is None else self.best.bounds[: self.best.proven],
            first_until=first_until,
        )
        assignment = None if raised.plan is None else fillings.assign(self.uncounted, raised.plan)
        self._take(RaisedPlan.of(raised, assignment))


def _applies(request: PlanRequest) -> bool:
    goal = goal_of(request)
    return (
        (goal.fair or goal.by_cost)
        and not requires_resilience(request)
        and bool(request.colocations)
        and _levels_decide(request)
    )


def _levels_decide(request: PlanRequest) -> bool:
    """Whether of two plans that keep hard co-locations the levels alone say which is better."""
    hard = all(item.mode == "hard" for item in request.colocations)
    return hard and not has_penalties(request.objective)
