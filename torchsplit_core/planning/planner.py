"""plan: validate, build the problem, search, assign to GPUs, verify."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torchsplit_core.planning.baselines.heuristic_fallback import better_heuristic
from torchsplit_core.planning.exclusive.plan import plan_exclusive
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.fractional.plan import plan_fractional
from torchsplit_core.planning.infeasibility.notes import NO_CONFLICT, NO_RELAXATION
from torchsplit_core.planning.outcome.assignment import Assignment
from torchsplit_core.planning.outcome.build import build_plan_outcome, no_plan
from torchsplit_core.planning.outcome.canonical_layout import canonicalised
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.problem.held_gpus import touched_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import (
    goal_of,
    max_min_objective,
    reached_levels,
    reads_samples,
)
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.timing import Stopwatch, partial_deadline
from torchsplit_core.planning.traffic.minimization import (
    minimize_cross_gpu_traffic,
    ranks_by_traffic,
    without_soft_colocations,
)
from torchsplit_core.planning.verification.outcome import verify, violations
from torchsplit_core.solver.pyomo_model import load_pyomo
from torchsplit_core.values import (
    InternalFault,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Progress,
    RoutedBytes,
    ignore_progress,
)
from torchsplit_core.values.status import SolveStatus

SEARCH_SHARE = 0.95
"""Part of the time limit for the search; assignment, verification and writing take the rest."""

OBJECTIVE_SHARE = 0.85
"""Part of the search for the objective, if routed co-locations then rank its best plans."""

HEURISTICS_S = 2.0
"""Most seconds for baselines if a search with co-locations did not finish; they take some hundredths."""

EXPLAIN_S = 2.0
"""Least seconds for explaining an infeasible request."""

CONFLICTS_SHARE = 0.6
"""Part of that time for the conflicts; the least relaxation gets the rest."""


CLEARLY_BETTER = 1.01
"""Times the first level of the last plan handed out that a further one has: to check one costs some of the search."""


def plan(
    request: PlanRequest,
    *,
    progress: Progress = ignore_progress,
    reasons: bool = True,
    on_plan: Callable[[PlanOutcome], None] | None = None,
) -> PlanOutcome:
    """Plan a request: a verified plan, a proof that there is none with its reasons, or a timeout.

    Raises InputFault if the request breaks a rule, InternalFault if the plan fails its independent verification.
    `solver.time_limit_s` limits the search; explaining an infeasible request may take about as long again, unless
    `reasons` is False. Response limits are not kept: `latency_slo` plans and simulates in rounds.

    While the search goes on `on_plan` gets the first verified plan (of a fair objective: that leaves no model at 0)
    and each later one that is clearly better, none of them proven; or that there is none, before the reasons.
    """
    validate(request)
    if reads_samples(request):
        return _plan_samples(request, progress, with_reasons=reasons)
    watch = Stopwatch()
    deadline = watch.begun + SEARCH_SHARE * request.solver.time_limit_s
    if request.objective.max_touched_gpus is not None:
        return _plan_limited_change(request, watch, deadline, progress, with_reasons=reasons)
    by_traffic = ranks_by_traffic(request)
    problem = build_problem(without_soft_colocations(request) if by_traffic else request)
    if on_plan is not None:
        incumbents = _Incumbents(request, on_plan, watch, problem.warnings)
        problem = replace(problem, on_incumbent=incumbents)
        if goal_of(request).fair and (by_rule := _or_heuristic(request, None, None, watch)) is not None:
            # The search for a fair plan comes late to plans that keep co-locations.
            incumbents.hand_out(by_rule)
    until = partial_deadline(deadline, OBJECTIVE_SHARE) if by_traffic else deadline
    outcome = _search(problem, watch, until, progress)
    if on_plan is not None:
        outcome = incumbents.no_worse(outcome)
    if by_traffic and outcome.gpus:
        progress(0.9, "Keeping requests on their GPU")
        outcome = minimize_cross_gpu_traffic(request, outcome, deadline, watch)
        outcome = replace(outcome, statistics=watch.statistics(outcome.statistics.details))
    if outcome.gpus:
        return _canonicalise_and_verify(request, outcome if problem.complete else _without_proof(outcome))
    ended = replace(outcome, request_sha256=request_hash(request), warnings=problem.warnings)
    if not problem.complete:
        ended = replace(ended, status="timeout")
    if on_plan is not None and ended.status == "infeasible":
        on_plan(replace(ended, warnings=(*ended.warnings, NO_RELAXATION, NO_CONFLICT)))
    return _explain_failure(request, ended, progress, with_reasons=reasons)


def _plan_samples(request: PlanRequest, progress: Progress, *, with_reasons: bool) -> PlanOutcome:
    """The plan of an objective of demand samples, by plans for minima."""
    from torchsplit_core.planning.sample_plans.plan_samples import plan_samples

    outcome = plan_samples(request, partial(plan, reasons=False), progress=progress, reasons=with_reasons)
    if outcome.status == "infeasible" and with_reasons and not outcome.conflicts:
        outcome = _with_reasons_of_minima(request, outcome, progress)
    begun = time.perf_counter()
    if request.objective.max_touched_gpus is None:
        outcome = _placed(request, outcome)
    verify(request, outcome)
    spent = time.perf_counter() - begun
    return replace(outcome, statistics=replace(outcome.statistics, verify_s=spent))


def _with_reasons_of_minima(request: PlanRequest, outcome: PlanOutcome, progress: Progress) -> PlanOutcome:
    """Why the minima cannot hold, whatever the samples are."""
    models = tuple(replace(model, demand_samples=()) for model in request.models)
    objective = replace(max_min_objective(request.objective), attainment=None)
    minima = plan(replace(request, models=models, objective=objective), progress=progress)
    return replace(
        outcome,
        conflicts=minima.conflicts,
        least_relaxation=minima.least_relaxation,
        warnings=tuple(dict.fromkeys((*outcome.warnings, *minima.warnings))),
    )


def _plan_limited_change(
    request: PlanRequest, watch: Stopwatch, deadline: float, progress: Progress, *, with_reasons: bool
) -> PlanOutcome:
    """The plan that touches few GPUs; if there is none, the reasons of the request without that limit, if it has any.

    Starts are those of now where a GPU stays, so they are not made canonical.
    """
    from torchsplit_core.planning.limited_change import plan_limited_change

    outcome = plan_limited_change(request, watch, deadline, progress)
    if outcome.gpus or outcome.status == "timeout":
        verify(request, outcome)
        return outcome
    free = replace(request, objective=replace(request.objective, max_touched_gpus=None))
    unlimited = plan(free, progress=progress, reasons=with_reasons)
    if unlimited.status == "infeasible":
        return replace(unlimited, request_sha256=request_hash(request))
    limit = request.objective.max_touched_gpus
    note = f"No plan that changes at most {limit} GPUs of the current state meets every demand."
    if unlimited.gpus:
        touched = touched_gpus(request, unlimited.gpus)
        note += f" One that changes {touched} does; fewer may suffice."
    return replace(outcome, warnings=(*outcome.warnings, note))


@dataclass
class _Incumbents:
    """Hands the plans of a search to `on_plan`, each clearly better than the last one."""

    request: PlanRequest
    on_plan: Callable[[PlanOutcome], None]
    watch: Stopwatch
    warnings: tuple[str, ...]
    value: float | None = None
    last: PlanOutcome | None = None

    def __call__(self, value: float, gpus: Callable[[], tuple[PlannedGpu, ...]]) -> None:
        goal = goal_of(self.request)
        factor = 1 / CLEARLY_BETTER if goal.minimised else CLEARLY_BETTER
        if self.value is None or goal.better((value,), (self.value * factor,)):
            self.hand_out(unproven_outcome(self.request, gpus(), self.watch.statistics({})))

    def hand_out(self, outcome: PlanOutcome) -> None:
        outcome = canonicalised(self.request, outcome)
        # A plan that fails its check is left out: the search goes on, and its outcome is checked by itself.
        if (outcome.objective.value or 0.0) > 0 and not any(violations(self.request, outcome)):
            self.value, self.last = reached_levels(outcome.objective)[0], outcome
            self.on_plan(replace(outcome, warnings=(*self.warnings, *outcome.warnings)))

    def no_worse(self, outcome: PlanOutcome) -> PlanOutcome:
        """The outcome, or the last plan handed out if the search ends without a plan that is as good."""
        goal, objective = goal_of(self.request), outcome.objective
        if self.last is None or self.value is None or outcome.status in ("optimal", "infeasible"):
            return outcome
        if outcome.gpus and not goal.better((self.value,), reached_levels(objective)[:1]):
            return outcome
        bound = None if objective.proven_levels else objective.bound
        bound = None if bound is None else goal.clamp_bound(bound, self.value)
        gap = None if bound is None else goal.gap(self.value, bound)
        return replace(
            self.last,
            objective=replace(self.last.objective, bound=bound, gap=gap),
            statistics=outcome.statistics,
        )


def _search(problem: Problem, watch: Stopwatch, deadline: float, progress: Progress) -> PlanOutcome:
    """The plan found before the deadline, or the status without one; not verified yet."""
    request = problem.request
    if request.sharing == "fractional":
        fractional = plan_fractional(problem, watch, deadline, progress)
        outcome = fractional.outcome
        if fractional.status != "infeasible":
            outcome = _or_heuristic(request, outcome, fractional.bound, watch)
        return outcome or _no_plan(request, fractional.status, watch.statistics(fractional.details))
    exclusive = plan_exclusive(problem, deadline, progress)
    watch.searched_s += exclusive.levels.seconds
    statistics = watch.statistics(exclusive.details)
    best = None
    if exclusive.assignment is not None:
        best = _build_outcome(exclusive.problem, exclusive.assignment, exclusive.levels, statistics)
    if exclusive.levels.status != "infeasible":
        bound = exclusive.levels.bounds[0] if exclusive.levels.bounds else None
        best = _or_heuristic(request, best, bound, watch)
    return best or _no_plan(request, exclusive.levels.status, statistics)


def _no_plan(request: PlanRequest, status: SolveStatus, statistics: PlanStatistics) -> PlanOutcome:
    """The outcome without a plan. Raises InternalFault if the status claims one."""
    if status == "optimal" or status == "feasible":
        raise InternalFault(f"A search ended {status} without a plan.")
    return no_plan(request, status, statistics)


def _or_heuristic(
    request: PlanRequest, outcome: PlanOutcome | None, bound: float | None, watch: Stopwatch
) -> PlanOutcome | None:
    """A baseline's plan if co-locations left the search without a plan or with a worse one; else `outcome`."""
    if not request.colocations or (outcome is not None and outcome.status == "optimal"):
        return outcome
    with watch.searching():
        heuristic = better_heuristic(request, outcome, bound, time.perf_counter() + HEURISTICS_S)
    if heuristic is None:
        return outcome
    details = {} if outcome is None else dict(outcome.statistics.details)
    warnings = () if outcome is None else outcome.warnings
    return replace(
        heuristic,
        statistics=watch.statistics({**details, "by_rule_value": reached_levels(heuristic.objective)[0]}),
        warnings=tuple(dict.fromkeys((*warnings, *heuristic.warnings))),
    )


def _build_outcome(
    problem: Problem, assignment: Assignment, levels: LevelsResult, statistics: PlanStatistics
) -> PlanOutcome:
    return build_plan_outcome(
        problem,
        assignment,
        proven=levels.proven,
        tie_break_proven=levels.status == "optimal",
        bounds=levels.bounds,
        statistics=statistics,
    )


def _without_proof(outcome: PlanOutcome) -> PlanOutcome:
    """The plan without proofs: a search that left out ways to run a model bounds nothing."""
    routed = outcome.objective.routed
    objective = replace(
        outcome.objective,
        bound=None,
        gap=None,
        proven_levels=0,
        routed=None if routed is None else RoutedBytes(routed.bytes_per_s),
    )
    return replace(outcome, status="feasible", objective=objective)


def _canonicalise_and_verify(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The verified outcome on canonical layouts and near what runs now, with the time of the verification.

    Raises InternalFault if it fails.
    """
    begun = time.perf_counter()
    outcome = _placed(request, outcome)
    verify(request, outcome)
    spent = time.perf_counter() - begun
    return replace(outcome, statistics=replace(outcome.statistics, verify_s=spent))


def _placed(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome on canonical layouts and near what runs now."""
    outcome = canonicalised(request, outcome)
    if request.current is None:
        return outcome
    from torchsplit_core.planning.outcome.near_current import near_current

    return near_current(request, outcome)


def _explain_failure(
    request: PlanRequest, outcome: PlanOutcome, progress: Progress, *, with_reasons: bool
) -> PlanOutcome:
    """A timeout, or an infeasible request with its reasons."""
    if outcome.status == "infeasible" and with_reasons:
        # Only infeasible requests need reasons; Pyomo loads before the clock starts.
        from torchsplit_core.planning.infeasibility.conflicts import find_conflicts
        from torchsplit_core.planning.infeasibility.relaxation import least_relaxation

        load_pyomo()
        progress(0.9, "Finding which demands conflict")
        begun, seconds = time.perf_counter(), max(EXPLAIN_S, request.solver.time_limit_s)
        deadline = begun + seconds
        reasons = find_conflicts(request, begun + CONFLICTS_SHARE * seconds)
        relaxed = least_relaxation(request, deadline)
        notes = relaxed.notes if reasons else (*relaxed.notes, NO_CONFLICT)
        outcome = replace(
            outcome,
            conflicts=reasons,
            least_relaxation=relaxed.changes,
            warnings=(*outcome.warnings, *notes),
        )
    return _canonicalise_and_verify(request, outcome)
