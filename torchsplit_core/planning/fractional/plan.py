"""Fractional sharing: pooled shares for the bound, concrete slices for the plan.

0. Quick: the pooled linear program (relaxation.py), packed, or its whole slices with further tenants (added_tenants/):
   a plan and its bound in milliseconds.
1. Pooled: shares of equal slices are summed, a relaxation whose values bound every plan; small even with whole layouts.
   All levels of a fair objective once a plan reaches the first.
2. Packed: the pooled shares on concrete slices. If nothing is lost, that is the optimum.
3. Priced: levels or costs refuted by prices of shares and memory (model_patterns/), a tighter bound; of the least cost
   after the plan of whole slices.
4. Selected: a pattern for each model (model_patterns/selection.py), and what stands together with its latencies.
5. Counted: tenancies by pool (tenancy_counts.py), a bound too, and the concrete model of its layouts and tenants.
6. Exclusive: whole slices, as another plan to start from.
7. Diving: patterns of tenants that reach the targets with fewer GPUs, or a higher level.
8. In boxes: levels refuted for ranges of the models' latencies.
9. Changed: what stands together on slices (slice_contents.py), from the best plan so far on.
   On few GPUs, where service times are limited, in place of 5, 7 and 8: levels are decided for all layouts of the fleet
   (model_patterns/level_search.py), with 9 beside it.
10. With hard co-locations, before all these: whole slices, the plan without them for its bound, and contents of each
   GPU that keep them (colocated_contents.py) or the concrete model with them on known layouts (colocated_shares.py). On
   many GPUs, where any tie models or a loss is to be survived: pooled shares that keep co-locations and whole slices
   with all that, both with further tenants (added_tenants/).
11. Concrete: the exact model, slice by slice; if too large, with the layouts of the best plan fixed, which gives a plan
   without proof. Where a loss is to be survived on few GPUs, contents of each follow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, cmp_to_key

from torchsplit_core.planning.exclusive.plan import ExclusiveResult, plan_exclusive
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.objectives import solve_objective
from torchsplit_core.planning.fractional.added_tenants.colocated_tenants import (
    bring_together,
    first_level,
    share_whole,
)
from torchsplit_core.planning.fractional.colocated_contents import covers, improve_colocated
from torchsplit_core.planning.fractional.colocated_shares import (
    ColocatedShares,
    restore_colocations,
    share_whole_slices,
)
from torchsplit_core.planning.fractional.diving import assign_patterns, is_divable, plan_by_diving
from torchsplit_core.planning.fractional.fixed_layouts import (
    MAX_EXACT_TENANCIES,
    MAX_FIXED_TENANCIES,
    fixed_fleet,
    may_be_searched,
    only_tenants,
    planned_layouts,
    reduce_points,
    tenancy_count,
    with_fixed_layouts,
)
from torchsplit_core.planning.fractional.initial_plan import initial_plan
from torchsplit_core.planning.fractional.model_patterns.cost_bounds import bound_cost
from torchsplit_core.planning.fractional.model_patterns.level_bounds import (
    bound_boxes,
    bound_level,
    positive_rates,
)
from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.level_search import LevelSearch, has_few_fleets
from torchsplit_core.planning.fractional.model_patterns.selection import PatternSelection
from torchsplit_core.planning.fractional.packing import equalise_shares, pack_shares
from torchsplit_core.planning.fractional.relaxation import POOLED_SHARE, aggregate_shares
from torchsplit_core.planning.fractional.restricted_master import PlacedPattern
from torchsplit_core.planning.fractional.slice_contents import (
    ContentPlan,
    better_contents,
    content_plan,
    contents_of,
    is_known,
    ties_models,
)
from torchsplit_core.planning.fractional.targets import targets
from torchsplit_core.planning.fractional.tenancy_counts import (
    TenancyCounts,
    count_tenancies,
    counts_all_limits,
    counts_of,
    longest_latencies,
)
from torchsplit_core.planning.outcome.assignment import (
    Assignment,
    assign_layouts,
    assign_shares,
    build_planned_gpus,
)
from torchsplit_core.planning.outcome.build import (
    build_plan_outcome,
    keeps_minima,
)
from torchsplit_core.planning.outcome.resilience import survives_failure
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import (
    Goal,
    first_bound,
    goal_of,
    reached_levels,
    requires_resilience,
)
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, build_deadline, partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.values import FleetEntry, PlannedGpu, PlanOutcome, PlanRequest, PlanStatistics, Progress
from torchsplit_core.values.status import SolveStatus

SEARCH_S = 1.0
"""Least remaining seconds for the slower steps after the linear program's plan."""

COUNT_SHARE, CONCRETE_SHARE = 0.25, 0.3
"""Parts of the remaining time for counting tenancies, and for each search of the concrete model of them."""

PRICE_SHARE, SELECT_SHARE, BOX_SHARE, COST_SHARE = 0.15, 0.35, 0.25, 0.3
"""Parts of the remaining time for refuting levels by prices, for selecting patterns, for refuting in boxes, and for a
bound of the least cost."""

OVERTIME_S = 1.0
"""Seconds beyond the limit in which further steps may begin: each ends soon, and may better a first plan."""

SMALL_FLEET = 16
"""GPUs up to which levels after the first are relaxed once a plan reaches that one, and hard co-locations are restored
on the layouts of a plan without them."""

MAX_PROVEN_TENANCIES = 500
"""Tenancies up to which the exact program mostly proves a plan with hard co-locations; above, where service times are
limited, contents come first."""

CONTENT_SHARE = 0.9
"""Part of the remaining time for changing what stands together on slices."""

EXACT_SHARE, LESS_EXACT_SHARE = 0.7, 0.2
"""Part of the remaining time for the exact program, where contents are changed GPU by GPU after it; the second where it
is mostly too large."""

WHOLE_SHARE, LIMITED_WHOLE_SHARE, FREE_SHARE = 0.25, 0.3, 0.5
"""Where there are hard co-locations: part of the time for whole slices (the second where contents GPU by GPU follow and
service times are limited), then of the rest for the plan without them."""

LESS_WHOLE_SHARE, LESS_FREE_SHARE = 0.15, 0.25
"""The same where contents GPU by GPU follow, the first where no service times are limited and where levels are
decided."""

MANY_WHOLE_SHARE, LESS_MANY_WHOLE_SHARE, NEAR = 0.7, 0.4, 0.98
"""The same on many GPUs, also where they are soft or the loss of a GPU is to be survived: without and with a plan of
pooled shares that keeps all that and comes near the bound, to this part of it."""

LESS_SELECT_SHARE = 0.2
"""Part of the remaining time for selections where levels are decided after them."""

WHOLE_STEP_SHARE, SURVIVING_WHOLE_SHARE = 0.35, 0.6
"""Part of the remaining time for whole slices after pooled shares; the second where a loss is to be survived on few
GPUs and service times are limited: there little is gained by shares."""

DIVE_SHARE = 0.3
"""Part of the remaining time for one dive to the targets."""


@dataclass
class FractionalResult:
    """The result of the steps: a plan, or why there is none."""

    status: SolveStatus
    outcome: PlanOutcome | None
    details: dict[str, str | int | float]
    bound: float | None = None
    """Of the first level; None if none is proven."""


def plan_fractional(
    problem: Problem, watch: Stopwatch, deadline: float, progress: Progress
) -> FractionalResult:
    """The best fractional plan found before the deadline, with a proven bound; `watch` adds the searches' time."""

    @cache
    def exclusive() -> Problem:
        whole_slices = build_problem(replace(problem.request, sharing="exclusive"))
        # Whole slices are shares of 1.
        return replace(whole_slices, on_incumbent=problem.on_incumbent)

    if problem.choices and all(choice.needs_own_slice for choice in problem.choices):
        return _plan_without_sharing(exclusive(), problem.request, watch, deadline, progress)
    with watch.searching():
        shares = aggregate_shares(problem, partial_deadline(deadline, POOLED_SHARE))
    initial = None if shares is None else initial_plan(problem, exclusive, shares, watch, deadline, progress)
    if initial is not None and (initial.status == "optimal" or deadline - time.perf_counter() < SEARCH_S):
        return FractionalResult(initial.status, initial, dict(initial.statistics.details))
    deadline += watch.load_solver()
    value_bound = float("inf")
    if shares is not None and shares.level == 0:
        # Slightly above, so that rounding never cuts off a plan that reaches the bound.
        value_bound = shares.bound * (1 + TOLERANCE)
    plans = [] if initial is None else [initial]
    small = len(list_gpus(problem.request.gpus)) <= SMALL_FLEET
    colocated: dict[str, ColocatedShares | None] = {}
    free_bound, whole, free_shares = None, None, None
    hard = any(item.mode == "hard" for item in problem.request.colocations)
    tied = hard if small else bool(problem.request.colocations) or requires_resilience(problem.request)
    by_contents = small and hard and covers(problem)
    limited = problem.limits_service_times
    if tied and tenancy_count(problem) > (
        MAX_PROVEN_TENANCIES if by_contents and limited else MAX_EXACT_TENANCIES
    ):
        if not small and goal_of(problem.request).fair:
            free_shares, colocated["together"] = bring_together(problem, deadline, watch)
            if free_shares is not None and free_shares.level == 0:
                free_bound = free_shares.bound
        # Whole slices come before all that takes long: with many pairs nothing better may be found in time.
        if small:
            part = WHOLE_SHARE
            if by_contents:
                part = LIMITED_WHOLE_SHARE if limited else LESS_WHOLE_SHARE
        else:
            together = colocated.get("together")
            is_near = (
                free_bound is not None and together is not None and first_level(together) > NEAR * free_bound
            )
            part = LESS_MANY_WHOLE_SHARE if is_near else MANY_WHOLE_SHARE
        whole = plan_exclusive(exclusive(), partial_deadline(deadline, part), progress)
        watch.searched_s += whole.levels.seconds
        if small:
            free = build_problem(replace(problem.request, colocations=()))
            part = LESS_FREE_SHARE if by_contents else FREE_SHARE
            planned = plan_fractional(free, watch, partial_deadline(deadline, part), progress)
            if planned.status == "infeasible":
                return planned
            free_bound = planned.bound
            if planned.outcome is not None:
                free_bound = first_bound(planned.outcome.objective)
            if by_contents and whole.assignment is not None and free_bound is not None:
                colocated["contents"] = _change_colocated(
                    problem,
                    build_planned_gpus(problem.request, whole.assignment),
                    first_level(ColocatedShares(whole.problem, whole.assignment)),
                    free_bound,
                    partial_deadline(deadline, CONTENT_SHARE),
                    watch,
                    () if planned.outcome is None else planned.outcome.gpus,
                )
            elif planned.outcome is not None:
                colocated["colocated"] = restore_colocations(problem, free, planned.outcome, deadline, watch)
            if not by_contents and whole.assignment is not None:
                gpus = build_planned_gpus(problem.request, whole.assignment)
                colocated["shared_whole"] = share_whole_slices(problem, gpus, deadline, watch)
        elif free_shares is not None and time.perf_counter() < deadline:
            colocated["second_tenants"] = share_whole(problem, whole, deadline, watch)
    fixed_problems: dict[tuple[FleetEntry, ...], Problem] = {}
    # On few GPUs all levels are worth their time only where a plan reaches the first one; on many they are quickly
    # relaxed, and packed better.
    for first_only in (True, False) if small and goal_of(problem.request).fair else (False,):
        try:
            formulation = replace(
                build(problem, "pooled", until=build_deadline(deadline)), value_bound=value_bound
            )
        except OutOfTime:
            break
        pooled = solve_objective(
            formulation,
            partial_deadline(deadline, 0.35),
            progress=lambda a, b: progress(0.3 * a, b),
            level_one_only=first_only,
        )
        watch.searched_s += pooled.seconds
        details: dict[str, str | int | float] = {"stages": pooled.levels, "pooled": pooled.status}
        if pooled.status == "infeasible":
            return FractionalResult("infeasible", None, details)
        if pooled.values:
            details["pooled_value"] = pooled.values[0]
        steps = _SearchSteps(
            formulation,
            pooled,
            exclusive,
            watch,
            deadline,
            progress,
            details,
            plans,
            fixed_problems,
            first_only,
            whole,
        )
        if free_bound is not None:
            steps.tighten(free_bound)
        if whole is not None:
            steps.plan_exclusive()
        for name, item in colocated.items():
            if item is not None:
                steps.add_plan(name, item.problem, item.assignment, LevelsResult())
        colocated.clear()
        if (result := steps.run()) is not None:
            return result
    if not plans:
        left = [item for item in colocated.values() if item is not None]
        if whole is not None and whole.assignment is not None:
            left.append(ColocatedShares(replace(whole.problem, request=problem.request), whole.assignment))
        plans += [
            build_plan_outcome(
                item.problem, item.assignment, proven=0, tie_break_proven=False,
                bounds=[free_bound], statistics=watch.statistics({}),
            )
            for item in left
        ]  # fmt: skip
    if not plans:
        return FractionalResult("timeout", None, {})
    best = max(plans, key=cmp_to_key(_compare))
    return FractionalResult(best.status, best, dict(best.statistics.details))


def _change_colocated(
    problem: Problem,
    gpus: Sequence[PlannedGpu],
    level: float,
    bound: float,
    until: float,
    watch: Stopwatch,
    free: Sequence[PlannedGpu] = (),
) -> ColocatedShares | None:
    """Contents with a higher level than these GPUs', if any; None without any. `free`: a plan without co-locations."""
    per_gpu = build_problem(problem.request, per_gpu=True)
    with watch.searching():
        assignment = improve_colocated(per_gpu, gpus, level, bound, until, free)
    return None if assignment is None else ColocatedShares(per_gpu, assignment)


def _plan_without_sharing(
    exclusive: Problem, request: PlanRequest, watch: Stopwatch, deadline: float, progress: Progress
) -> FractionalResult:
    """The plan of whole slices, whose proofs hold where the memory of no instance is known: then none shares."""
    result = plan_exclusive(exclusive, deadline, progress)
    levels = result.levels
    watch.searched_s += levels.seconds
    outcome = None
    if result.assignment is not None:
        outcome = build_plan_outcome(
            replace(result.problem, request=request),
            result.assignment,
            proven=levels.proven,
            tie_break_proven=levels.status == "optimal",
            bounds=levels.bounds,
            statistics=watch.statistics(result.details),
        )
    bound = levels.bounds[0] if levels.bounds else None
    return FractionalResult(
        levels.status if outcome is None else outcome.status, outcome, result.details, bound
    )


@dataclass
class _SearchSteps:
    """The steps after the pooled search, and the plans found so far."""

    formulation: Formulation
    relaxation: LevelsResult
    exclusive: Callable[[], Problem]
    watch: Stopwatch
    deadline: float
    progress: Progress
    details: dict[str, str | int | float]
    plans: list[PlanOutcome]
    fixed_problems: dict[tuple[FleetEntry, ...], Problem]
    first_only: bool
    """Whether the relaxation has no more than the first level."""
    whole: ExclusiveResult | None = None
    """The plan of whole slices, once it was searched."""
    counted: list[TenancyCounts] = field(default_factory=list)
    """The best counts, last those that let each tenancy have the share of its own latency."""
    patterns: ModelPatterns | None = None
    """The patterns of whole models, once levels are priced."""
    pooled_bound: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.pooled_bound = self.relaxation.bounds[0] if self.relaxation.bounds else None

    @property
    def request(self) -> PlanRequest:
        """The request."""
        return self.formulation.problem.request

    def run(self) -> FractionalResult | None:
        """Run each step until one reaches the optimum; None where the other levels are to be relaxed too."""
        self._pack_relaxation()
        for step in self._steps():
            late = time.perf_counter() > self.deadline + OVERTIME_S
            if self.plans and (late or self._best().status == "optimal"):
                return self._result()
            if self.first_only and self._reaches_first_level():
                return None
            step()
        if not covers(self.formulation.problem):
            return self._result(infeasible=self._solve_exact(self.deadline))
        small = tenancy_count(self.formulation.problem) <= MAX_PROVEN_TENANCIES
        until = partial_deadline(self.deadline, EXACT_SHARE if small else LESS_EXACT_SHARE)
        infeasible = self._solve_exact(until)
        if not infeasible and (not self.plans or self._best().status != "optimal"):
            self._change_colocated()
        return self._result(infeasible=infeasible)

    def _steps(self) -> Iterator[Callable[[], None]]:
        """The steps in their order, each known once those before it were taken."""
        by_cost = goal_of(self.request).by_cost and len(list_gpus(self.request.gpus)) <= SMALL_FLEET
        if by_cost:
            yield from (self.plan_exclusive, self._price_cost)
            # From the bound upwards a dive takes a second, and a plan at the bound needs no other step.
            yield self._dive
        yield self._price_levels
        yield self._select_patterns
        if self._few_fleets():
            yield from (self.plan_exclusive, self._search_levels)
            return
        yield from (self._count_tenancies, self._solve_counts, self.plan_exclusive)
        if not by_cost:
            yield self._dive
        yield from (self._bound_boxes, self._change_contents, self._solve_fixed_layouts)

    def _result(self, *, infeasible: bool = False) -> FractionalResult:
        if not self.plans:
            bound = self.relaxation.bounds[0] if self.relaxation.bounds else None
            return FractionalResult("infeasible" if infeasible else "timeout", None, self.details, bound)
        best = self._best()
        statistics = self.watch.statistics(best.statistics.details)
        return FractionalResult(
            best.status, replace(best, statistics=statistics), self.details, first_bound(best.objective)
        )

    def _best(self) -> PlanOutcome:
        return max(self.plans, key=cmp_to_key(_compare))

    def add_plan(
        self, step: str, problem: Problem, assignment: Assignment, levels_result: LevelsResult
    ) -> bool:
        """Add a plan, if its shares keep the limits and its links the minima; whether it is the optimum."""
        if not _shares_keep_limits(problem, assignment):
            return False
        plan = _proven_outcome(
            problem, assignment, self.relaxation, levels_result, self.watch.statistics(self.details)
        )
        if not keeps_minima(problem, plan.models):
            return False
        self.plans.append(plan)
        value = reached_levels(plan.objective)[0]
        self.details[f"{step}_value"] = value
        self.formulation.problem.report(value, lambda: plan.gpus)
        return plan.status == "optimal"

    def _pack_relaxation(self) -> None:
        """Pack the pooled shares on concrete slices."""
        best, problem = self.relaxation.best, self.formulation.problem
        if best is None or self.request.colocations:
            return
        amounts = [
            (self.formulation.slice_uses[use].choice, part) for use, part in sorted(best.amounts.items())
        ]
        with self.watch.searching():
            assignment = pack_shares(problem, best.layouts, amounts)
        if assignment is None or not survives_failure(
            problem.request, build_planned_gpus(problem.request, assignment)
        ):
            return
        self.add_plan("packed", problem, assignment, LevelsResult())

    def _reaches_first_level(self) -> bool:
        """Whether the best plan so far reaches the first level of pooled shares."""
        if not self.plans or self.pooled_bound is None:
            return False
        return equal(reached_levels(self._best().objective)[0], self.pooled_bound)

    def _count_tenancies(self) -> None:
        """Count tenancies by pool: a bound, and layouts and tenants to search."""
        # The scale of levels: what was priced since is no better one.
        known = self.pooled_bound
        if known is None:
            return
        problem = self.formulation.problem
        self.progress(0.3, "Counting tenants")
        start = counts_of(problem, self._best().gpus) if self.plans else None
        seconds = COUNT_SHARE * (self.deadline - time.perf_counter())
        with self.watch.searching():
            counts = count_tenancies(problem, known, seconds, start=start)
            if counts is None:
                return
            self.tighten(counts.bound)
            longest = longest_latencies(problem, [*counts.tenants, *(start.tenancies if start else ())])
            joint = count_tenancies(problem, known, seconds / 2, longest, start) if longest else None
        self.details["counted"], self.details["counted_value"] = counts.status, counts.value
        self.counted = [counts] if joint is None else [joint, counts]

    def _solve_counts(self) -> None:
        """Search contents of the counted latencies, the concrete model of the counted layouts and tenants, and that
        with further points."""
        if is_known(self.formulation.problem):
            for item in self.counted:
                self._realise(item)
        for nearby in (False, True):
            for item in self.counted:
                if self._solve_counted(item, nearby=nearby):
                    return

    def tighten(self, bound: float) -> None:
        """Take the bound of the first level, where it is tighter than the known one."""
        goal, known = goal_of(self.request), next(iter(self.relaxation.bounds), None)
        if not goal.minimised:
            # Slightly looser, so that rounding never cuts off a plan that reaches it; costs cut off nothing.
            bound *= 1 + TOLERANCE
        if known is not None and not goal.better((known,), (bound,)):
            return
        self.relaxation.values, self.relaxation.bounds, self.relaxation.proven = [bound], [bound], 1
        self.plans[:] = [_with_bound(item, bound) for item in self.plans]
        if goal.fair:
            self.formulation = replace(self.formulation, value_bound=bound)

    def _solve_counted(self, counts: TenancyCounts, *, nearby: bool) -> bool:
        """The concrete model of these layouts and tenants, with further points of the same stages if `nearby`."""
        goal = goal_of(self.request)
        if self.plans and not goal.better((counts.value,), reached_levels(self._best().objective)[:1]):
            return False
        problem = self.formulation.problem
        layouts = assign_layouts(problem, counts.layouts).layouts
        tenants = [problem.choices[number] for number in counts.tenants]
        until = partial_deadline(self.deadline, CONCRETE_SHARE)
        few = only_tenants(self._fixed_problem(layouts), problem, tenants, layouts, nearby=nearby)
        if {choice.case for choice in few.choices} != set(range(len(few.cases))):
            return False
        model = self._model(few, until)
        if model is None:
            return False
        local = solve_objective(
            model, until, progress=lambda a, b: self.progress(0.3 + 0.1 * a, b), level_one_only=True
        )
        self.watch.searched_s += local.seconds
        if local.best is None:
            return False
        return self.add_plan("counted", few, assign_shares(model, local.best), LevelsResult())

    def plan_exclusive(self) -> None:
        """Whole slices are shares of 1, so the exclusive optimum is also a plan here, and often a good one."""
        if self.whole is None:
            problem, part = self.formulation.problem, WHOLE_STEP_SHARE
            if requires_resilience(self.request) and problem.limits_service_times and covers(problem):
                part = SURVIVING_WHOLE_SHARE
            elif self._few_fleets():
                part = LESS_WHOLE_SHARE
            until = partial_deadline(self.deadline, part)
            self.whole = plan_exclusive(self.exclusive(), until, lambda a, b: self.progress(0.3 + 0.3 * a, b))
            self.watch.searched_s += self.whole.levels.seconds
        if self.whole.assignment is None or "exclusive_value" in self.details:
            return
        self.add_plan(
            "exclusive",
            replace(self.whole.problem, request=self.request),
            self.whole.assignment,
            LevelsResult(),
        )

    def _price_levels(self) -> None:
        """Refute levels above the best plan's."""
        problem, known = self.formulation.problem, self.pooled_bound
        if known is None or not goal_of(self.request).fair or not counts_all_limits(problem):
            return
        self.progress(0.3, "Pricing shares")
        with self.watch.searching():
            self.patterns = ModelPatterns(problem)
            until = partial_deadline(self.deadline, PRICE_SHARE)
            bound = bound_level(self.patterns, self._reached(), known, until)
        self.details["priced_value"] = bound
        self.tighten(bound)

    def _price_cost(self) -> None:
        """Refute costs below the best plan's."""
        problem = self.formulation.problem
        if not counts_all_limits(problem):
            return
        self.progress(0.3, "Pricing shares")
        with self.watch.searching():
            most = self._best().objective.value if self.plans else None
            until = partial_deadline(self.deadline, COST_SHARE)
            rates = positive_rates(problem, 0.0)
            bound = bound_cost(ModelPatterns(problem), rates, math.inf if most is None else most, until)
        if bound is None:
            return
        self.details["priced_value"] = bound
        self.tighten(bound)
        if most is not None and bound >= most:
            best = self._best()
            objective = replace(best.objective, bound=most, gap=0.0, proven_levels=1)
            # Which plan of this cost separates least is not proven.
            soft = any(item.mode == "soft" for item in self.request.colocations)
            self.plans.append(replace(best, objective=objective, status="feasible" if soft else "optimal"))

    def _reached(self) -> float:
        """The first level of the best plan."""
        return reached_levels(self._best().objective)[0] if self.plans else 0.0

    def _bound(self) -> float:
        """The best bound of the first level; infinite without one."""
        bound = next(iter(self.relaxation.bounds), None)
        return math.inf if bound is None else bound

    def _select_patterns(self) -> None:
        """Select a pattern for each model."""
        if self.patterns is None or not self.patterns.is_complete or ties_models(self.request):
            return
        bound = self._bound()
        if not self.formulation.problem.limits_service_times or not math.isfinite(bound):
            # Without limits each model has one option, and shares are packed well.
            return
        self.progress(0.35, "Selecting patterns")
        search = PatternSelection(self.patterns, self._reached(), bound)
        part = LESS_SELECT_SHARE if self._few_fleets() else SELECT_SHARE
        selections = search.run(partial_deadline(self.deadline, part))
        while True:
            with self.watch.searching():
                counts = next(selections, None)
            if counts is None:
                return
            search.reached = self._realise(counts)

    def _realise(self, counts: TenancyCounts) -> float:
        """The level of the best plan, once these layouts and tenants were searched."""
        problem = self.formulation.problem
        if is_known(problem):
            with self.watch.searching():
                contents = contents_of(problem, counts, self._reached(), self._bound(), self.deadline)
            self._add_contents(contents)
        else:
            self._solve_counted(counts, nearby=True)
        return self._reached()

    def _add_contents(self, contents: ContentPlan | None) -> None:
        """Add a plan by contents, if there is one."""
        if contents is None:
            return
        problem = self.formulation.problem
        assignment = equalise_shares(problem, assign_patterns(problem, contents.layouts, contents.patterns))
        if assignment is not None:
            self.add_plan("contents", problem, assignment, LevelsResult())

    def _bound_boxes(self) -> None:
        """Refute levels in boxes of the models' options."""
        if self.patterns is None or not self.plans:
            return
        self.progress(0.55, "Refuting levels")
        with self.watch.searching():
            until = partial_deadline(self.deadline, BOX_SHARE)
            bound = bound_boxes(self.patterns, self._reached(), self._bound(), until)
        self.details["boxes_value"] = bound
        self.tighten(bound)

    def _few_fleets(self) -> bool:
        """Whether levels are decided for all layouts of the fleet and options of the models.

        Without limits on service times each has one option, and counted tenancies end sooner.
        """
        patterns, problem = self.patterns, self.formulation.problem
        return (
            patterns is not None
            and self.formulation.problem.limits_service_times
            and is_known(problem)
            and has_few_fleets(patterns)
        )

    def _search_levels(self) -> None:
        """Decide levels between plan and bound."""
        bound, problem = self._bound(), self.formulation.problem
        if self.patterns is None or not math.isfinite(bound):
            return
        self.progress(0.6, "Deciding levels")
        known = content_plan(problem, self._best().gpus, self._reached()) if self.plans else None
        search = LevelSearch(self.patterns, self._reached(), bound, known)
        with closing(search.run(self.deadline)) as plans:
            while True:
                with self.watch.searching():
                    plan = next(plans, None)
                self.tighten(search.bound)
                if plan is None:
                    break
                self._add_contents(plan)
                search.reached = self._reached()
        self.details["decided_value"] = search.bound

    def _dive(self) -> None:
        """Dive to the targets: the fewest GPUs between bound and plan, or the highest level.

        Targets at the bound come first: they can often be reached, and nothing is better.
        """
        problem, share = self.formulation.problem, DIVE_SHARE
        if not is_divable(problem):
            return
        pattern_pool: dict[PlacedPattern, None] = {}
        for targets_rps, max_cost in targets(
            problem, self.relaxation.bounds, self._best() if self.plans else None
        ):
            if time.perf_counter() > self.deadline:
                break
            self.progress(0.6, "Filling slices")
            with self.watch.searching():
                assignment = plan_by_diving(
                    problem, targets_rps, max_cost, partial_deadline(self.deadline, share), pattern_pool
                )
            if assignment is not None:
                self.add_plan("filled", problem, assignment, LevelsResult())
                return

    def _change_contents(self) -> None:
        """Change what stands together on slices, from the best plan on."""
        bound = self._bound()
        if not self.plans or not math.isfinite(bound):
            return
        best, problem = self._best(), self.formulation.problem
        self.progress(0.6, "Changing slices")
        with self.watch.searching():
            until = partial_deadline(self.deadline, CONTENT_SHARE)
            hints = self.counted[-1].tenants if self.counted else ()
            better = better_contents(problem, best, bound, until, hints)
        self._add_contents(better)

    def _change_colocated(self) -> None:
        """The same where a loss is to be survived or with hard co-locations, GPU by GPU; a first plan without any."""
        bound, problem = self._bound(), self.formulation.problem
        if not math.isfinite(bound):
            return
        gpus = self._best().gpus if self.plans else ()
        shares = _change_colocated(problem, gpus, self._reached(), bound, self.deadline, self.watch)
        if shares is not None:
            self.add_plan("contents", shares.problem, shares.assignment, LevelsResult())

    def _solve_fixed_layouts(self) -> None:
        """Fix the layouts of each plan so far, and search with the few most important points."""
        for incumbent in self.plans[-2:]:
            layouts = planned_layouts(incumbent.gpus)
            if not may_be_searched(self.formulation.problem, layouts):
                continue
            few = reduce_points(self._fixed_problem(layouts))
            until = partial_deadline(self.deadline, 0.35)
            model = self._model(few, until)
            if model is None:
                continue
            local = solve_objective(
                model, until, progress=lambda a, b: self.progress(0.6 + 0.2 * a, b), level_one_only=True
            )
            self.watch.searched_s += local.seconds
            if local.best is not None:
                self.add_plan("local", few, assign_shares(model, local.best), LevelsResult())

    def _model(self, problem: Problem, until: float) -> Formulation | None:
        """The concrete program, searched until then; None if it is too large, or time ran out with a plan known."""
        if tenancy_count(problem) > MAX_FIXED_TENANCIES or (self.plans and time.perf_counter() > until):
            return None
        try:
            formulation = build(problem, "concrete", until=build_deadline(until))
        except OutOfTime:
            return None
        return replace(formulation, value_bound=self.formulation.value_bound)

    def _solve_exact(self, until: float) -> bool:
        """Search the exact model; whether it proves that there is no plan."""
        problem, free = self._exact_problem()
        model = None if problem is None else self._model(problem, until)
        if problem is None or model is None:
            self.details["concrete"] = "timeout"
            return False
        concrete = solve_objective(model, until, progress=lambda a, b: self.progress(0.6 + 0.4 * a, b))
        self.watch.searched_s += concrete.seconds
        self.details["concrete"] = concrete.status
        if not free:
            # A proof with fixed layouts says nothing about other layouts.
            concrete.proven, concrete.bounds = 0, []
        if concrete.best is not None:
            self.add_plan("concrete", problem, assign_shares(model, concrete.best), concrete)
        if concrete.bounds and concrete.proven == 0:
            # A bound of the exact model bounds the other plans too.
            self.plans[:] = [_with_bound(item, concrete.bounds[0]) for item in self.plans]
        return concrete.status == "infeasible" and free

    def _exact_problem(self) -> tuple[Problem | None, bool]:
        """The problem per slice, and whether layouts are free; None if even fixed ones have too many tenancies."""
        size = tenancy_count(self.formulation.problem)
        if size <= MAX_EXACT_TENANCIES or (not self.plans and size <= MAX_FIXED_TENANCIES):
            return build_problem(self.request, per_gpu=True), True
        if not self.plans:
            return None, True
        layouts = planned_layouts(self._best().gpus)
        if not may_be_searched(self.formulation.problem, layouts):
            return None, False
        fixed = self._fixed_problem(layouts)
        return (fixed, False) if tenancy_count(fixed) <= MAX_FIXED_TENANCIES else (None, False)

    def _fixed_problem(self, layouts: Mapping[str, tuple[str, ...]]) -> Problem:
        """The problem per slice with these layouts by GPU; GPUs without one stay free."""
        fleet = fixed_fleet(self.request, layouts)
        if fleet not in self.fixed_problems:
            self.fixed_problems[fleet] = with_fixed_layouts(self.request, layouts)
        return self.fixed_problems[fleet]


def _with_bound(outcome: PlanOutcome, bound: float | None) -> PlanOutcome:
    """The outcome with a tighter bound of its first level, if none of its levels is proven."""
    objective = outcome.objective
    known = objective.bound
    if objective.proven_levels or bound is None or objective.value is None:
        return outcome
    value = reached_levels(objective)[0]
    goal = goal_of(objective)
    tighter = goal.clamp_bound(bound if known is None else goal.tightest_bound(bound, known), value)
    return replace(outcome, objective=replace(objective, bound=tighter, gap=goal.gap(value, tighter)))


def _shares_keep_limits(problem: Problem, assignment: Assignment) -> bool:
    """Whether no share is below its least by more than rounding: the solver keeps rows to 10⁻⁶ only."""
    shares: dict[int, list[float]] = {}
    longest: dict[tuple[int, int], float] = {}
    for item in assignment.slices:
        for choice, share in item.tenants:
            if problem.cases[choice.case].has_latency_levels:
                shares.setdefault(choice.case, []).append(share)
                key = choice.case, choice.stage
                longest[key] = max(longest.get(key, 0.0), choice.point.latency_ms)
    return all(
        min(case_shares) * (problem.cases[case].budget_ms or float("inf"))
        >= sum(latency for (of, _), latency in longest.items() if of == case) * (1 - TOLERANCE / 2)
        for case, case_shares in shares.items()
    )


def _proven_outcome(
    problem: Problem,
    assignment: Assignment,
    relaxation: LevelsResult,
    levels_result: LevelsResult,
    statistics: PlanStatistics,
) -> PlanOutcome:
    """The outcome of an assignment, proven as far as the search or the pooled bounds prove it."""
    first = build_plan_outcome(
        problem, assignment, proven=0, tie_break_proven=False, bounds=[], statistics=statistics
    )
    goal = goal_of(first.objective)
    matched = _matched_levels(goal, reached_levels(first.objective), relaxation)
    if levels_result.proven >= matched and levels_result.proven > 0:
        bounds, proven = list(levels_result.bounds), levels_result.proven
        settled = levels_result.status == "optimal"
    else:
        bounds, proven = list(relaxation.bounds), matched
        # The pooled search bounds level `matched` given that all before it are equal.
        if levels_result.bounds and matched == 0:
            known = [bound for bound in (levels_result.bounds[0], *bounds[:1]) if bound is not None]
            bounds = [goal.tightest_bound(*known) if known else None]
        # The pooled relaxation ignores co-location, so it cannot settle that tie-break.
        settled = not any(item.mode == "soft" for item in problem.request.colocations)
    return build_plan_outcome(
        problem, assignment, proven=proven, tie_break_proven=settled, bounds=bounds, statistics=statistics
    )


def _matched_levels(goal: Goal, levels: Sequence[float], relaxation: LevelsResult) -> int:
    """How many first levels of the plan reach a proven pooled value."""
    count = 0
    for value, best in zip(levels[: relaxation.proven], relaxation.values, strict=False):
        if not equal(value, best) and goal.better((best,), (value,)):
            break
        count += 1
    return count


def _compare(first: PlanOutcome, second: PlanOutcome) -> int:
    """Above 0 if the first plan is better; of plans of equal value, the one with more proven."""
    goal = goal_of(first.objective)
    for first_value, second_value in zip(
        reached_levels(first.objective), reached_levels(second.objective), strict=True
    ):
        if not equal(first_value, second_value):
            return 1 if goal.better((first_value,), (second_value,)) else -1
    proven = (first.status == "optimal", first.objective.proven_levels)
    others = (second.status == "optimal", second.objective.proven_levels)
    return (proven > others) - (proven < others)
