"""Fractional sharing: pooled shares for the bound, concrete slices for the plan.

0. Quick: the pooled linear program of pooled.py, packed: a plan and its bound in milliseconds.
1. Pooled: shares of equal slices are added up; a relaxation, so its values bound
   every plan, and with whole layout counts it is small.
2. Packed: the pooled shares on concrete slices. Where nothing is lost, that is the optimum.
3. Exclusive: whole slices, as another plan to start from.
4. Filled: slices filled with tenants so that every model has what it must have on fewer GPUs, or a higher level.
5. Concrete: the exact model, slice by slice; where it is too large, with the layouts of the
   best plan so far held fixed, which gives a plan and no proof.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cmp_to_key

from torchsplit_core.planning.exclusive.plan import search_exclusive
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import Search
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.objectives import search
from torchsplit_core.planning.fractional.dive import can_dive, fill_slices
from torchsplit_core.planning.fractional.fill_program import Placed
from torchsplit_core.planning.fractional.first_plan import first_plan
from torchsplit_core.planning.fractional.pack import pack
from torchsplit_core.planning.fractional.pooled import pool_shares
from torchsplit_core.planning.fractional.wishes import wishes
from torchsplit_core.planning.outcome.assignment import Assignment, assign_shares, materialise
from torchsplit_core.planning.outcome.build import plan_outcome
from torchsplit_core.planning.outcome.losses import survives
from torchsplit_core.planning.problem.build import CandidateLayout, Choice, Problem, build_problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import Goal, first_bound, goal_of, reached
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, building_until, part_of
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.values import FleetEntry, PlannedGpu, PlanOutcome, PlanRequest, PlanStatistics, Progress
from torchsplit_core.values.status import SolveStatus

SEARCH_S = 1.0
"""Seconds that must be left for the slower steps to follow the linear program's plan."""

LARGEST_EXACT = 3000
"""Tenancies (binaries) up to which the concrete model is searched with free layouts."""

FILLED_PART = 0.3
"""Part of the time that is left for one try to fill slices so that everybody has what is wished."""

LARGEST_FIXED = 12000
"""And with fixed layouts."""


@dataclass
class Shared:
    """What came of the steps: a plan, or why there is none."""

    status: SolveStatus
    outcome: PlanOutcome | None
    details: dict[str, str | int | float]
    bound: float | None = None
    """Of the first level; None where none is proven."""


def plan_shared(problem: Problem, watch: Stopwatch, deadline: float, progress: Progress) -> Shared:
    """The best fractional plan found before the deadline, with an honest bound; `watch` gets the searches' time."""

    @cache
    def exclusive() -> Problem:
        return build_problem(replace(problem.request, sharing="exclusive"))

    with watch.searching():
        shares = pool_shares(problem, deadline)
    quick = None if shares is None else first_plan(problem, exclusive, shares, watch, deadline, progress)
    if quick is not None and (quick.status == "optimal" or deadline - time.perf_counter() < SEARCH_S):
        return Shared(quick.status, quick, dict(quick.statistics.details))
    deadline += watch.loading()
    top = float("inf")
    if shares is not None and shares.level == 0:
        # A little above, so that rounding never cuts off a plan that reaches the bound.
        top = shares.bound * (1 + TOLERANCE)
    try:
        built = replace(build(problem, "pooled", until=building_until(deadline)), top=top)
    except OutOfTime:
        return Shared("timeout", quick, {}) if quick is None else Shared(quick.status, quick, {})
    pooled = search(built, part_of(deadline, 0.35), progress=lambda a, b: progress(0.3 * a, b))
    watch.searched_s += pooled.seconds
    details: dict[str, str | int | float] = {"stages": pooled.levels, "pooled": pooled.status}
    if pooled.status == "infeasible":
        return Shared("infeasible", None, details)
    if pooled.values:
        details["pooled_value"] = pooled.values[0]
    steps = _Steps(built, pooled, exclusive, watch, deadline, progress, details)
    steps.plans += [] if quick is None else [quick]
    return steps.run()


@dataclass
class _Steps:
    """The steps after the pooled search, and the plans they have found so far."""

    built: Formulation
    pooled: Search
    exclusive: Callable[[], Problem]
    watch: Stopwatch
    deadline: float
    progress: Progress
    details: dict[str, str | int | float]
    plans: list[PlanOutcome] = field(default_factory=list)
    fixed: dict[tuple[FleetEntry, ...], Problem] = field(default_factory=dict)

    @property
    def request(self) -> PlanRequest:
        """What is asked."""
        return self.built.problem.request

    def run(self) -> Shared:
        """Each step in turn, until one has the optimum."""
        if self._packed() or self._exclusive():
            return self._answer()
        if self._filled():
            return self._answer()
        self._local()
        return self._answer(infeasible=self._concrete())

    def _answer(self, *, infeasible: bool = False) -> Shared:
        if not self.plans:
            bound = self.pooled.bounds[0] if self.pooled.bounds else None
            return Shared("infeasible" if infeasible else "timeout", None, self.details, bound)
        best = self._best()
        statistics = self.watch.statistics(best.statistics.details)
        return Shared(
            best.status, replace(best, statistics=statistics), self.details, first_bound(best.objective)
        )

    def _best(self) -> PlanOutcome:
        return max(self.plans, key=cmp_to_key(_compare))

    def _offer(self, step: str, problem: Problem, assignment: Assignment, found: Search) -> bool:
        """One more plan; whether it is the optimum."""
        plan = _settle(problem, assignment, self.pooled, found, self.watch.statistics(self.details))
        self.plans.append(plan)
        self.details[f"{step}_value"] = reached(plan.objective)[0]
        return plan.status == "optimal"

    def _packed(self) -> bool:
        """The pooled shares on concrete slices."""
        best, problem = self.pooled.best, self.built.problem
        if best is None or self.request.colocations:
            return False
        amounts = [(self.built.uses[use].choice, part) for use, part in sorted(best.amounts.items())]
        with self.watch.searching():
            assignment = pack(problem, best.layouts, amounts)
        if assignment is None or not survives(problem.request, materialise(problem.request, assignment)):
            return False
        return self._offer("packed", problem, assignment, Search())

    def _exclusive(self) -> bool:
        """Whole slices are shares of 1, so the exclusive optimum is a plan here too, and often a good one."""
        until = part_of(self.deadline, 0.35)
        alone = search_exclusive(self.exclusive(), until, lambda a, b: self.progress(0.3 + 0.3 * a, b))
        self.watch.searched_s += alone.found.seconds
        if alone.assignment is None:
            return False
        return self._offer(
            "exclusive", replace(alone.problem, request=self.request), alone.assignment, Search()
        )

    def _filled(self) -> bool:
        """Slices filled for what must be had: the fewest GPUs between bound and plan, or the highest level.

        Those at the bound first: what it says can often be had, and nothing better can.
        """
        problem, part = self.built.problem, FILLED_PART
        if not can_dive(problem):
            return False
        known: dict[Placed, None] = {}
        for wanted, most_cost in wishes(problem, self.pooled.bounds, self._best() if self.plans else None):
            if time.perf_counter() > self.deadline:
                break
            self.progress(0.6, "Filling slices")
            with self.watch.searching():
                found = fill_slices(problem, wanted, most_cost, part_of(self.deadline, part), known)
            if found is not None:
                return self._offer("filled", problem, found, Search())
        return False

    def _local(self) -> None:
        """The layouts of each plan so far, held fixed, with the few points that matter most."""
        for known in self.plans[-2:]:
            few = _thin(self._fixed(known))
            until = part_of(self.deadline, 0.35)
            model = self._model(few, until)
            if model is None:
                continue
            local = search(
                model, until, progress=lambda a, b: self.progress(0.6 + 0.2 * a, b), level_one_only=True
            )
            self.watch.searched_s += local.seconds
            if local.best is not None:
                self._offer("local", few, assign_shares(model, local.best), Search())

    def _model(self, problem: Problem, until: float) -> Formulation | None:
        """The concrete program, searched until then; None where it is too large, or there is a plan and no time."""
        if tenancies(problem) > LARGEST_FIXED or (self.plans and time.perf_counter() > until):
            return None
        try:
            built = build(problem, "concrete", until=building_until(until))
        except OutOfTime:
            return None
        return replace(built, top=self.built.top)

    def _concrete(self) -> bool:
        """The exact model; whether it proves that there is no plan."""
        problem, free = self._concrete_problem()
        model = None if problem is None else self._model(problem, self.deadline)
        if problem is None or model is None:
            self.details["concrete"] = "timeout"
            return False
        concrete = search(model, self.deadline, progress=lambda a, b: self.progress(0.6 + 0.4 * a, b))
        self.watch.searched_s += concrete.seconds
        self.details["concrete"] = concrete.status
        if not free:
            # A proof under fixed layouts says nothing about other layouts.
            concrete.proven, concrete.bounds = 0, []
        if concrete.best is not None:
            self._offer("concrete", problem, assign_shares(model, concrete.best), concrete)
        if concrete.bounds and concrete.proven == 0:
            # What bounds the exact model bounds the other plans as well.
            self.plans[:] = [_bounded(item, concrete.bounds[0]) for item in self.plans]
        return concrete.status == "infeasible" and free

    def _concrete_problem(self) -> tuple[Problem | None, bool]:
        """Slice by slice, and whether layouts are free; None where even fixed ones are too many."""
        size = tenancies(self.built.problem)
        if size <= LARGEST_EXACT or (not self.plans and size <= LARGEST_FIXED):
            return build_problem(self.request, per_gpu=True), True
        if not self.plans:
            return None, True
        fixed = self._fixed(self._best())
        return (fixed, False) if tenancies(fixed) <= LARGEST_FIXED else (None, False)

    def _fixed(self, known: PlanOutcome) -> Problem:
        """The problem slice by slice with the layouts of a plan held fixed; its unused GPUs stay free."""
        fleet = _held(self.request, known.gpus)
        if fleet not in self.fixed:
            self.fixed[fleet] = with_layouts_held(self.request, known.gpus)
        return self.fixed[fleet]


def with_layouts_held(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Problem:
    """The problem slice by slice with the layouts of these GPUs held fixed; those not in use stay free."""
    fixed = build_problem(replace(request, gpus=_held(request, gpus)), per_gpu=True)
    # The plan answers the request as it was asked, not the one with fixed layouts.
    return replace(fixed, request=request)


def _held(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[FleetEntry, ...]:
    entries = []
    for gpu, planned in zip(list_gpus(request.gpus), gpus, strict=True):
        held = (tuple(item.profile for item in planned.slices),) if planned.used else None
        entries.append(gpu.entry(held, id=gpu.id))
    return tuple(entries)


def _bounded(outcome: PlanOutcome, bound: float | None) -> PlanOutcome:
    """The outcome with a tighter bound of its first level, where none of its levels is proven."""
    objective = outcome.objective
    known = objective.bound
    if objective.proven_levels or bound is None or objective.value is None:
        return outcome
    value = reached(objective)[0]
    goal = goal_of(objective)
    tighter = goal.held(bound if known is None else goal.tightest(bound, known), value)
    return replace(outcome, objective=replace(objective, bound=tighter, gap=goal.gap(value, tighter)))


def _thin(problem: Problem) -> Problem:
    """At most two points for each stage and slice: the most throughput, and the most at a third of the limit."""
    kept: dict[tuple[int, int, int, str, bool], Choice] = {}
    for choice in problem.choices:
        budget = problem.cases[choice.case].budget_ms
        quick = budget is not None and choice.point.latency_ms <= budget / 3
        for kind in {False, quick}:
            key = (choice.case, choice.stage, choice.group, choice.profile, kind)
            if key not in kept or choice.rate_rps > kept[key].rate_rps:
                kept[key] = choice
    chosen = {id(choice) for choice in kept.values()}
    return replace(problem, choices=tuple(choice for choice in problem.choices if id(choice) in chosen))


def tenancies(problem: Problem) -> int:
    """Tenancies that the concrete program of these GPUs has, each GPU by itself."""
    groups = problem.groups
    most = [_most_slices(layouts) for layouts in (group.layouts for group in groups)]
    return sum(
        len(groups[choice.group].gpu_ids) * most[choice.group].get(choice.profile, 0)
        for choice in problem.choices
    )


def _most_slices(layouts: Iterable[CandidateLayout]) -> Counter[str]:
    """By profile, the most useful slices of it that one layout has."""
    most: Counter[str] = Counter()
    for layout in layouts:
        most |= Counter(layout.useful)
    return most


def _settle(
    problem: Problem, assignment: Assignment, pooled: Search, found: Search, statistics: PlanStatistics
) -> PlanOutcome:
    """The outcome of an assignment, proven as far as the search's own proof or the pooled bounds reach."""
    first = plan_outcome(problem, assignment, proven=0, settled=False, bounds=[], statistics=statistics)
    goal = goal_of(first.objective)
    matched = _matched(goal, reached(first.objective), pooled)
    if found.proven >= matched and found.proven > 0:
        bounds, proven = list(found.bounds), found.proven
        settled = found.status == "optimal"
    else:
        bounds, proven = list(pooled.bounds), matched
        # Level `matched` is bounded by the pooled search given that all before it are equal.
        if found.bounds and matched == 0:
            known = [bound for bound in (found.bounds[0], *bounds[:1]) if bound is not None]
            bounds = [goal.tightest(*known) if known else None]
        # The pooled relaxation knows nothing of co-location, so it cannot settle that tie-break.
        settled = not any(item.mode == "soft" for item in problem.request.colocations)
    return plan_outcome(
        problem, assignment, proven=proven, settled=settled, bounds=bounds, statistics=statistics
    )


def _matched(goal: Goal, levels: Sequence[float], pooled: Search) -> int:
    """How many levels of the plan, from the first on, reach a pooled value that is proven."""
    count = 0
    for value, best in zip(levels[: pooled.proven], pooled.values, strict=False):
        if not equal(value, best) and goal.better((best,), (value,)):
            break
        count += 1
    return count


def _compare(first: PlanOutcome, second: PlanOutcome) -> int:
    """Above 0 where the first plan is better; of plans of equal value the one with more proven."""
    goal = goal_of(first.objective)
    for mine, other in zip(reached(first.objective), reached(second.objective), strict=True):
        if not equal(mine, other):
            return 1 if goal.better((mine,), (other,)) else -1
    proven = (first.status == "optimal", first.objective.proven_levels)
    others = (second.status == "optimal", second.objective.proven_levels)
    return (proven > others) - (proven < others)
