"""Among plans as good as a given one the one that touches the fewest GPUs, as far as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torchsplit_core.day_plans.closest_plan import closest_gpus
from torchsplit_core.planning.limited_change import plan_limited_change
from torchsplit_core.planning.outcome.figures import separation_traffic, unproven_outcome
from torchsplit_core.planning.outcome.near_current import near_current
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import goal_of, reached_levels
from torchsplit_core.planning.timing import Stopwatch
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.values import (
    ObjectiveValue,
    PlannedGpu,
    PlanOutcome,
    PlanRequest,
    ignore_progress,
    tenants_on,
)

PROGRAM_SHARE = 0.8
"""Of the time: for the program that counts GPUs; the search with limits gets what is left."""

LEAST_S = 0.1
"""A search gets at least this long."""

MOST_SEARCHED = 12
"""GPUs of a plan up to which other plans of the same levels are searched too, with another model the worst served."""


Planner = Callable[[PlanRequest], PlanOutcome]
"""Plans a request within its time limit, verified."""


def with_least_change(
    request: PlanRequest, plan: PlanOutcome, before: PlanOutcome, deadline: float, planner: Planner
) -> PlanOutcome:
    """The plan of the request with the fewest touched GPUs among those as good as `plan`; `before` runs now.

    A search that ends before the deadline (of perf_counter) proves that number. Where LLMs are served `planner` plans,
    since such plans are simulated; where response times are limited none is searched. The outcome is verified and has
    the proofs of `plan`.
    """
    if not plan.gpus or not plan.touched_gpus or request.objective.max_touched_gpus is not None:
        return plan
    if any(model.max_response_ms is not None for model in request.models):
        return plan
    best = plan
    if not _has_simulated_limits(request):
        same = same_if_as_good(request, plan, before)
        if same.touched_gpus == 0:
            return same
        if time.perf_counter() < deadline:
            best = _by_program(request, plan, deadline) or plan
    if used_gpus(plan) > MOST_SEARCHED:
        return best
    least, most = 0 if _has_simulated_limits(request) else 1, best.touched_gpus or 0
    while least < most and time.perf_counter() < deadline:
        limit = (least + most) // 2
        candidate = _changing_less(request, plan, _limited(request, limit, deadline, planner))
        if candidate is None:
            least = limit + 1
        else:
            best, most = candidate, candidate.touched_gpus or 0
    return best


def _limited(request: PlanRequest, limit: int, deadline: float, planner: Planner) -> PlanOutcome:
    """The best plan that touches at most so many GPUs, found before the deadline."""
    asked = replace(request, objective=replace(request.objective, max_touched_gpus=limit))
    if not _has_simulated_limits(request):
        return plan_limited_change(asked, Stopwatch(), deadline, ignore_progress)
    seconds = max(deadline - time.perf_counter(), LEAST_S)
    return planner(replace(asked, solver=replace(request.solver, time_limit_s=seconds)))


def _by_program(request: PlanRequest, plan: PlanOutcome, deadline: float) -> PlanOutcome | None:
    """The plan that `closest_plan` finds in most of the time, if it touches fewer GPUs."""
    now = time.perf_counter()
    gpus = closest_gpus(request, plan, PROGRAM_SHARE * (deadline - now))
    if gpus is None:
        return None
    return _changing_less(request, plan, unproven_outcome(request, gpus, plan.statistics))


def same_if_as_good(request: PlanRequest, plan: PlanOutcome, other: PlanOutcome) -> PlanOutcome:
    """The plan `other` of another request as one of this request, if it is as good here as `plan`; else `plan`."""
    if not plan.gpus or not other.gpus or _has_simulated_limits(request):
        return plan
    alike = _unchanged(request, plan, other)
    return plan if alike is None or any(violations(request, alike)) else alike


def answering(request: PlanRequest, plan: PlanOutcome, limited: PlanOutcome) -> PlanOutcome:
    """A plan found under further limits as one of the request, with what `plan` of the request proves.

    Where it is not as good it is feasible, with the gap to that bound.
    """
    alike = _as_good(request, plan, limited)
    if alike is not None:
        return alike
    gpus = _without_idle_slices(limited)
    worse = unproven_outcome(request, gpus, limited.statistics, plan)
    # Its simulated figures are of the same slices and demands.
    return replace(worse, models=limited.models, front=limited.front, warnings=limited.warnings)


def _has_simulated_limits(request: PlanRequest) -> bool:
    return any(model.max_response_ms is not None or model.llm is not None for model in request.models)


def _unchanged(request: PlanRequest, plan: PlanOutcome, other: PlanOutcome) -> PlanOutcome | None:
    """The slices and tenants of another plan as a plan of the request, with the proofs of `plan`; None if it is not as
    good, or has a model that the request has not. Not verified."""
    asked = {model.name for model in request.models}
    if any(tenant.model not in asked for *_, tenant in tenants_on(other.gpus)):
        return None
    return _as_good(request, plan, unproven_outcome(request, other.gpus, plan.statistics))


def _changing_less(request: PlanRequest, plan: PlanOutcome, other: PlanOutcome) -> PlanOutcome | None:
    """The other plan as an outcome of the request, if it is as good as `plan`, keeps all demands and touches less."""
    alike = _as_good(request, plan, other)
    if alike is None or alike.touched_gpus is None or alike.touched_gpus >= (plan.touched_gpus or 0):
        return None
    return None if any(violations(request, alike)) else alike


def _as_good(request: PlanRequest, plan: PlanOutcome, other: PlanOutcome) -> PlanOutcome | None:
    """The other plan with the proofs of `plan`, if all levels and ties are as good on no more GPUs; not verified."""
    reached, wanted = reached_levels(other.objective), reached_levels(plan.objective)
    if not other.gpus or not all(map(equal, reached, wanted)) or used_gpus(other) > used_gpus(plan):
        return None
    gpus = _without_idle_slices(other)
    sent, least = (separation_traffic(request, alike) for alike in (gpus, plan.gpus))
    if sent > least and not equal(sent, least):
        return None
    outcome = replace(
        other,
        request_sha256=request_hash(request),
        status=plan.status,
        objective=_proven_as(request, plan.objective, other.objective, reached),
        gpus=gpus,
        statistics=plan.statistics,
        warnings=plan.warnings,
        touched_gpus=None,
    )
    return near_current(request, outcome)


def _without_idle_slices(plan: PlanOutcome) -> tuple[PlannedGpu, ...]:
    """Its GPUs without instances on which nothing runs: these may stay under a limit of changes alone."""
    return tuple(gpu if gpu.used else PlannedGpu(gpu.id, gpu.type, False) for gpu in plan.gpus)


def used_gpus(plan: PlanOutcome) -> int:
    """GPUs in use."""
    return sum(gpu.used for gpu in plan.gpus)


def _proven_as(
    request: PlanRequest, proven: ObjectiveValue, other: ObjectiveValue, levels: tuple[float, ...]
) -> ObjectiveValue:
    """The objective of the other plan with what is proven of the first one, whose levels are equal."""
    bound, gap = proven.bound, proven.gap
    if bound is not None:
        is_whole = proven.proven_levels >= len(levels)
        level = levels[proven.proven_levels] if not is_whole else other.value
        assert level is not None, "a plan has a value"
        bound = level if is_whole else goal_of(request).clamp_bound(bound, level)
        gap = goal_of(request).gap(level, bound)
    return replace(other, bound=bound, gap=gap, proven_levels=proven.proven_levels, routed=proven.routed)
