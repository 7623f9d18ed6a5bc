"""plan: validate, expand, formulate, search, lay out on named GPUs, verify."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.planning.baselines.start import better_by_rule
from torchsplit_core.planning.exclusive.plan import search_exclusive
from torchsplit_core.planning.formulation.leximin import Search
from torchsplit_core.planning.fractional.plan import plan_shared
from torchsplit_core.planning.infeasibility.notes import NO_CONFLICT
from torchsplit_core.planning.outcome.assignment import Assignment
from torchsplit_core.planning.outcome.build import no_plan, plan_outcome
from torchsplit_core.planning.outcome.standard import standardised
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import reached
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.routed.fewest import fewest_bytes, ranks_flows, without_ranks
from torchsplit_core.planning.timing import Stopwatch, part_of
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.solver.pyomo_model import load_pyomo
from torchsplit_core.values import (
    InternalFault,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Progress,
    RoutedBytes,
    ignore_progress,
)
from torchsplit_core.values.status import SolveStatus

SEARCH_PART = 0.95
"""Part of the time limit for the search; laying out, checking and writing take the rest."""

RANKED_PART = 0.85
"""Of that, the part for the objective alone, where routed co-locations rank the plans that are best by it."""

RULES_S = 2.0
"""Most seconds for plans by a rule, where a search with co-locations did not end; they take some hundredths."""

EXPLAIN_S = 2.0
"""Least time for the explanation of an infeasible request."""

CONFLICTS_PART = 0.6
"""Part of that time for the conflicts; the least relaxation has the rest."""


def plan(request: PlanRequest, *, progress: Progress = ignore_progress, reasons: bool = True) -> PlanOutcome:
    """Answer a plan request: a verified plan, a proof that there is none with its reasons, or a timeout.

    Raises InputFault where the request breaks a rule, InternalFault where the plan found
    fails its independent check. `solver.time_limit_s` bounds the search; an infeasible
    request may take about as long again to be explained, unless no `reasons` are asked for.
    Limits of response times are not kept: `responding` plans and simulates in rounds.
    """
    validate(request)
    watch = Stopwatch()
    deadline = watch.begun + SEARCH_PART * request.solver.time_limit_s
    if not ranks_flows(request):
        outcome, problem = _searched(request, watch, deadline, progress)
    else:
        outcome, problem = _searched(without_ranks(request), watch, part_of(deadline, RANKED_PART), progress)
        if outcome.gpus:
            progress(0.9, "Keeping requests on their GPU")
            outcome = fewest_bytes(request, outcome, deadline, watch)
            outcome = replace(outcome, statistics=watch.statistics(outcome.statistics.details))
    if outcome.gpus:
        return _verified(request, outcome if problem.exact else _unproven(outcome))
    ended = replace(outcome, request_sha256=request_hash(request), warnings=problem.warnings)
    return _without_plan(
        request, ended if problem.exact else replace(ended, status="timeout"), progress, explained=reasons
    )


def _searched(
    request: PlanRequest, watch: Stopwatch, deadline: float, progress: Progress
) -> tuple[PlanOutcome, Problem]:
    """The plan that a search has found by then, or how it ended without; not verified yet."""
    problem = build_problem(request)
    if request.sharing == "fractional":
        shared = plan_shared(problem, watch, deadline, progress)
        outcome = shared.outcome
        if shared.status != "infeasible":
            outcome = _or_by_rule(request, outcome, shared.bound, watch)
        return outcome or _nothing(request, shared.status, watch.statistics(shared.details)), problem
    exclusive = search_exclusive(problem, deadline, progress)
    watch.searched_s += exclusive.found.seconds
    statistics = watch.statistics(exclusive.details)
    found = None
    if exclusive.assignment is not None:
        found = _finish(exclusive.problem, exclusive.assignment, exclusive.found, statistics)
    if exclusive.found.status != "infeasible":
        bound = exclusive.found.bounds[0] if exclusive.found.bounds else None
        found = _or_by_rule(request, found, bound, watch)
    return found or _nothing(request, exclusive.found.status, statistics), problem


def _nothing(request: PlanRequest, status: SolveStatus, statistics: PlanStatistics) -> PlanOutcome:
    """How a search ended without a plan. InternalFault for one that says it has a plan."""
    if status == "optimal" or status == "feasible":
        raise InternalFault(f"A search ended {status} without a plan.")
    return no_plan(request, status, statistics)


def _or_by_rule(
    request: PlanRequest, found: PlanOutcome | None, bound: float | None, watch: Stopwatch
) -> PlanOutcome | None:
    """The plan of a rule where co-locations have left the search a worse one, or none; else what was found."""
    if not request.colocations or (found is not None and found.status == "optimal"):
        return found
    with watch.searching():
        ruled = better_by_rule(request, found, bound, time.perf_counter() + RULES_S)
    if ruled is None:
        return found
    details = {} if found is None else dict(found.statistics.details)
    warnings = () if found is None else found.warnings
    return replace(
        ruled,
        statistics=watch.statistics({**details, "by_rule_value": reached(ruled.objective)[0]}),
        warnings=tuple(dict.fromkeys((*warnings, *ruled.warnings))),
    )


def _finish(
    problem: Problem, assignment: Assignment, found: Search, statistics: PlanStatistics
) -> PlanOutcome:
    return plan_outcome(
        problem,
        assignment,
        proven=found.proven,
        settled=found.status == "optimal",
        bounds=found.bounds,
        statistics=statistics,
    )


def _unproven(outcome: PlanOutcome) -> PlanOutcome:
    """The plan alone: a search that left ways to run a model out bounds nothing."""
    routed = outcome.objective.routed
    objective = replace(
        outcome.objective,
        bound=None,
        gap=None,
        proven_levels=0,
        routed=None if routed is None else RoutedBytes(routed.bytes_per_s),
    )
    return replace(outcome, status="feasible", objective=objective)


def _verified(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome on standard layouts, with the time its check took; InternalFault where that fails."""
    begun = time.perf_counter()
    outcome = standardised(request, outcome)
    verify(request, outcome)
    spent = time.perf_counter() - begun
    return replace(outcome, statistics=replace(outcome.statistics, verify_s=spent))


def _without_plan(
    request: PlanRequest, outcome: PlanOutcome, progress: Progress, *, explained: bool
) -> PlanOutcome:
    """A timeout, or an infeasible request with its reasons."""
    if outcome.status == "infeasible" and explained:
        # Here, for what there is a plan for needs no reasons; and Pyomo before the clock starts.
        from torchsplit_core.planning.infeasibility.conflicts import conflicts
        from torchsplit_core.planning.infeasibility.relaxation import least_relaxation

        load_pyomo()
        progress(0.9, "Finding which demands conflict")
        begun, seconds = time.perf_counter(), max(EXPLAIN_S, request.solver.time_limit_s)
        deadline = begun + seconds
        reasons = conflicts(request, begun + CONFLICTS_PART * seconds)
        relaxed = least_relaxation(request, deadline)
        notes = relaxed.notes if reasons else (*relaxed.notes, NO_CONFLICT)
        outcome = replace(
            outcome,
            conflicts=reasons,
            least_relaxation=relaxed.changes,
            warnings=(*outcome.warnings, *notes),
        )
    return _verified(request, outcome)
