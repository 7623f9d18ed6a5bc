"""plan: validate, expand, formulate, search, lay out on named GPUs, verify."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.planning.disaggregate import Bench, seat_whole
from torchsplit_core.planning.expand import Problem, expand
from torchsplit_core.planning.formulation import build
from torchsplit_core.planning.outcome import no_plan, plan_outcome
from torchsplit_core.planning.search import Search, search
from torchsplit_core.planning.shared import plan_shared
from torchsplit_core.planning.solve import solver_name
from torchsplit_core.planning.validate import validate
from torchsplit_core.planning.verify import verify
from torchsplit_core.values import PlanOutcome, PlanRequest, PlanStatistics, Progress, ignore_progress


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
        return no_plan(request, shared.status, statistics, shared.warnings)
    problem = expand(request, per_gpu=bool(request.colocations))
    built = build(problem, "exclusive")
    build_s = time.perf_counter() - begun
    found = search(built, deadline, progress=progress)
    statistics = PlanStatistics(build_s, found.seconds, 0.0, solver_name(), {"stages": found.stages})
    if found.best is None:
        return no_plan(request, found.status, statistics, problem.warnings)
    return _finish(problem, seat_whole(built, found.best), found, statistics)


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
