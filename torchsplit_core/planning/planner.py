"""plan: validate, expand, formulate, search, lay out on named GPUs, verify."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.planning.disaggregate import Bench, seat_counts, seat_whole
from torchsplit_core.planning.expand import Problem, expand
from torchsplit_core.planning.explain import conflicts
from torchsplit_core.planning.formulation import build
from torchsplit_core.planning.leximin import Search
from torchsplit_core.planning.outcome import no_plan, plan_outcome
from torchsplit_core.planning.patterns import Counted, count_patterns
from torchsplit_core.planning.relax import least_relaxation
from torchsplit_core.planning.search import any_plan, search
from torchsplit_core.planning.shared import plan_shared
from torchsplit_core.planning.solve import solver_name
from torchsplit_core.planning.validate import validate
from torchsplit_core.planning.verify import verify
from torchsplit_core.values import (
    Objective,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Progress,
    ignore_progress,
)

FALLBACK_S = 2.0
"""Most seconds beyond the limit to find any plan at all, where the search has found none."""

TIES_PART = 0.15
"""Part of the time for a bound without co-locations and penalties."""

EXPLAIN_S = 2.0
"""Least time for the explanation of an infeasible request."""


def plan(request: PlanRequest, *, progress: Progress = ignore_progress) -> PlanOutcome:
    """Answer a plan request: a verified plan, a proof that there is none with its reasons, or a timeout.

    Raises InputFault where the request breaks a rule, InternalFault where the plan found
    fails its independent check. `solver.time_limit_s` bounds the search; an infeasible
    request may take about as long again to be explained.
    """
    validate(request)
    begun = time.perf_counter()
    deadline = begun + request.solver.time_limit_s
    if request.sharing == "fractional":
        shared = plan_shared(request, begun, deadline, progress)
        if shared.outcome is not None:
            return _verified(request, shared.outcome)
        statistics = PlanStatistics(0.0, shared.seconds, 0.0, solver_name(), shared.details)
        return _without_plan(request, shared.status, statistics, shared.warnings, progress)
    problem = expand(request)
    counted = count_patterns(problem, deadline, progress)
    if counted is not None:
        return _from_patterns(problem, counted, begun, progress)
    top = _without_ties(request, deadline)
    if top is None:
        statistics = PlanStatistics(0.0, time.perf_counter() - begun, 0.0, solver_name())
        return _without_plan(request, "infeasible", statistics, problem.warnings, progress)
    built = replace(build(problem, "exclusive"), top=top)
    build_s = time.perf_counter() - begun
    found = search(built, deadline, progress=progress)
    if found.status == "timeout":
        found = any_plan(built, FALLBACK_S)
    statistics = PlanStatistics(build_s, found.seconds, 0.0, solver_name(), {"stages": found.stages})
    if found.best is None:
        return _without_plan(request, found.status, statistics, problem.warnings, progress)
    return _finish(problem, seat_whole(built, found.best), found, statistics)


def _from_patterns(problem: Problem, counted: Counted, begun: float, progress: Progress) -> PlanOutcome:
    seconds = time.perf_counter() - begun
    statistics = PlanStatistics(0.0, seconds, 0.0, solver_name(), {"method": "patterns"})
    if counted.status in ("infeasible", "timeout"):
        return _without_plan(problem.request, counted.status, statistics, problem.warnings, progress)
    amounts = [(problem.choices[number], counted.amounts[number]) for number in sorted(counted.amounts)]
    bench = seat_counts(problem, counted.layouts, amounts)
    found = Search(counted.status, proven=counted.proven, bounds=list(counted.bounds))
    return _finish(problem, bench, found, statistics)


def _without_ties(request: PlanRequest, deadline: float) -> float | None:
    """A bound of the worst-served model: what patterns prove with co-locations and penalties dropped.

    None where even then no plan exists, infinite where patterns do not apply.
    """
    if request.objective.kind not in ("leximin", "max_min"):
        return float("inf")
    penalty = None if request.objective.memory_violation_penalty is None else 0.0
    eased = replace(request, colocations=(), objective=Objective("max_min", penalty), solver=request.solver)
    now = time.perf_counter()
    counted = count_patterns(expand(eased), now + TIES_PART * (deadline - now), ignore_progress)
    if counted is not None and counted.status == "infeasible":
        return None
    return counted.bounds[0] * (1 + 1e-6) if counted is not None and counted.bounds else float("inf")


def _finish(problem: Problem, bench: Bench, found: Search, statistics: PlanStatistics) -> PlanOutcome:
    outcome = plan_outcome(
        problem,
        bench,
        proven=found.proven,
        settled=found.status == "optimal",
        bounds=found.bounds,
        statistics=statistics,
    )
    return _verified(problem.request, outcome)


def _verified(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The outcome with the time its check took; InternalFault where it fails."""
    begun = time.perf_counter()
    verify(request, outcome)
    spent = time.perf_counter() - begun
    return replace(outcome, statistics=replace(outcome.statistics, verify_s=spent))


def _without_plan(
    request: PlanRequest,
    status: str,
    statistics: PlanStatistics,
    warnings: tuple[str, ...],
    progress: Progress,
) -> PlanOutcome:
    """A timeout, or an infeasible request with its reasons."""
    outcome = no_plan(request, status, statistics, warnings)
    if outcome.status == "infeasible":
        progress(0.9, "Finding out what stands in the way")
        deadline = time.perf_counter() + max(EXPLAIN_S, request.solver.time_limit_s)
        reasons = conflicts(request, deadline)
        relaxed = least_relaxation(request, deadline)
        notes = [relaxed.note] if relaxed.note else []
        if not reasons:
            notes.append("No conflict of demands could be proven minimal in the time given.")
        outcome = replace(
            outcome,
            conflicts=reasons,
            least_relaxation=relaxed.changes,
            warnings=(*warnings, *notes),
        )
    return _verified(request, outcome)
