"""Makes a plan whose simulated responses keep their limits, with a bound proven on the problem without queueing.

1. Refuse limits below the time that a request takes alone, with the reason.
2. Plan the problem without queueing (`relaxation`): its bound holds here too, and if it has no plan there is none.
   Its plan may already keep the limits.
3. Alternate planning and simulation (`slo_search`): simulate what each slice carries alone within the limit, plan with
   those rates, simulate the plan, and correct the next plan by what its instances carry together.
4. Check the best plan that keeps the limits again: without the solver, and by simulation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from torchsplit_core.latency_slo.relaxation import fastest_ms, relax, transfers_ms, without_limits
from torchsplit_core.latency_slo.slo_check import (
    FULL_S,
    RUNS,
    SHORT_REQUESTS,
    CheckedResponse,
    SloChecker,
    limited_models,
    offered_by,
)
from torchsplit_core.latency_slo.slo_search import Candidate, SloSearch
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.outcome.figures import level_values, unproven_outcome
from torchsplit_core.planning.outcome.levels import Levels, outcome_levels
from torchsplit_core.planning.planner import plan
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import build_objective_value, goal_of, level_count
from torchsplit_core.planning.request.validate import validate
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.simulation.validate import check_arrivals
from torchsplit_core.values import (
    Conflict,
    Demand,
    InternalFault,
    ObjectiveValue,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Progress,
    ignore_progress,
    point_type,
)

BOUND_PART = 0.35
"""Share of the time limit for the problem without queueing."""

MIN_BOUND_S = 0.4
"""Seconds for it that a shorter limit is exceeded by: there would be no bound."""

SEARCH_PART = 0.85
"""Share of the time limit after which no further plan is started; the rest is for the last simulation."""


def has_response_limit(request: PlanRequest) -> bool:
    """Whether the request limits a response time, so that its plans must be simulated."""
    return bool(limited_models(request))


def plan_with_slo(request: PlanRequest, *, progress: Progress = ignore_progress) -> PlanOutcome:
    """The verified outcome of a request with response-time limits. Raises InputFault if the request is not valid.

    The status is `timeout` if no plan was found that keeps the limits: that none exists is proven only if the problem
    without queueing has none.
    """
    began = time.perf_counter()
    validate(request)
    for model in request.models:
        if model.arrivals is not None:
            check_arrivals(f"model {model.name}, arrivals", model.arrivals, 100_000)
    types = frozenset(point_type(gpu.type) for gpu in list_gpus(request.gpus))
    reasons = tuple(_unreachable_limits(request, types))
    if reasons:
        return replace(no_plan(request, "infeasible", _statistics(began)), conflicts=reasons)
    limit = request.solver.time_limit_s
    progress(0.05, "planning without queues, for a bound")
    relaxation = relax(request, types)
    part = replace(relaxation.solver, time_limit_s=max(BOUND_PART * limit, MIN_BOUND_S))
    bound = plan(replace(relaxation, solver=part))
    if bound.status == "infeasible":
        return _infeasible(request, bound, began)
    known = bound if bound.gpus else None
    progress(0.2, "simulating that plan with queues")
    judge = SloChecker(request)
    search = SloSearch(request, types, judge, began + SEARCH_PART * limit, progress)
    search.run(known)
    if search.best is None:
        return _not_found(request, bound, search, began)
    outcome = _build_outcome(request, search.best, known, _statistics(began, search))
    return _verified(request, outcome, judge)


def _statistics(began: float, search: SloSearch | None = None) -> PlanStatistics:
    details = (
        {} if search is None else {"plans_tried": search.plans, "requests_simulated": search.judge.simulated}
    )
    return PlanStatistics(0.0, time.perf_counter() - began, 0.0, "highs, simulation", details)


def _unreachable_limits(request: PlanRequest, types: frozenset[str]) -> Sequence[Conflict]:
    """A conflict for each model whose limit is below what a request takes alone on its best slices."""
    conflicts = []
    for model in limited_models(request):
        least = _least_ms(request, model, types)
        if least is not None and least > (model.max_response_ms or 0.0):
            limit = model.max_response_ms or 0.0
            quickest = next(text for n in range(4, 18) if float(text := f"{least:.{n}g}") > limit)
            message = (
                f"{model.name}: max_response_ms {limit:.9g} is below the {quickest} ms that a request "
                "takes alone on the quickest slices of this fleet"
            )
            conflicts.append(Conflict((Demand("max_response_ms", model.name),), message))
    return conflicts


def _least_ms(request: PlanRequest, model: PlanModel, types: frozenset[str]) -> float | None:
    """Shortest ms of a request alone over the model's variants; None if none has a point for every stage."""
    totals = []
    for _, variant in model.allowed_variants:
        quickest = [fastest_ms(stage, types) for stage in variant.stages]
        known = [item for item in quickest if item is not None]
        if len(known) == len(quickest):
            totals.append(sum(known) + transfers_ms(request, variant))
    return min(totals, default=None)


def _infeasible(request: PlanRequest, bound: PlanOutcome, began: float) -> PlanOutcome:
    """Conflicts without queueing hold with it too; a minimum rate that the limit implies is named as the limit."""
    limited_names = {
        model.name
        for model in limited_models(request)
        if (model.min_throughput_rps or 0.0) < offered_by(model)
    }

    def restate_demand(original: Demand) -> Demand:
        if original.demand == "min_throughput_rps" and original.model in limited_names:
            return Demand("max_response_ms", original.model)
        return original

    conflicts = tuple(
        Conflict(
            tuple(dict.fromkeys(restate_demand(demanded) for demanded in item.demands)),
            f"{item.message} (what arrives must be served where the response time is limited)"
            if any(restate_demand(demanded) != demanded for demanded in item.demands)
            else item.message,
        )
        for item in bound.conflicts
    )
    unaffected = tuple(change for change in bound.least_relaxation or () if change.model not in limited_names)
    relaxation = bound.least_relaxation if len(unaffected) == len(bound.least_relaxation or ()) else None
    return replace(
        bound,
        request_sha256=request_hash(request),
        conflicts=conflicts,
        least_relaxation=relaxation,
        statistics=_statistics(began),
    )


def _not_found(request: PlanRequest, bound: PlanOutcome, search: SloSearch, began: float) -> PlanOutcome:
    last = f"; the last to fail: {', '.join(search.failing)}" if search.failing else ""
    words = (
        f"{search.plans} plans were tried and none holds every max_response_ms in its simulation{last}. "
        "That none exists is not proven."
    )
    return no_plan(request, "timeout", _statistics(began, search), (*bound.warnings, words))


def _build_outcome(
    request: PlanRequest, best: Candidate, bound: PlanOutcome | None, statistics: PlanStatistics
) -> PlanOutcome:
    """The plan as an outcome of the request, with simulated responses, the objective value and its bound."""
    plain = without_limits(request)
    outcome = unproven_outcome(plain, best.outcome.gpus, statistics)
    waiting = best.judgement.responses
    models = tuple(
        replace(
            model,
            response_ms=waiting[model.name].response_ms,
            max_wait_ms=0.0,
            response_bound_by=waiting[model.name].bound_by,
        )
        if model.name in waiting
        else model
        for model in outcome.models
    )
    objective = objective_within(plain, outcome, bound)
    total = level_count(request)
    ties = any(pair.mode != "hard" for pair in request.colocations)
    same = bound is not None and bound.gpus == outcome.gpus
    proven = objective.proven_levels == total and (
        not ties or (same and bound is not None and bound.status == "optimal")
    )
    warnings = (*(bound.warnings if bound else ()), *outcome.warnings, *_of_short_runs(request, waiting))
    return replace(
        outcome,
        request_sha256=request_hash(request),
        status="optimal" if proven else "feasible",
        objective=objective,
        models=models,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _of_short_runs(request: PlanRequest, responses: Mapping[str, CheckedResponse]) -> Iterator[str]:
    """A warning if response times are of short simulations."""
    short = sum(response.short for response in responses.values())
    if short:
        yield (
            f"Response times of {short} of {len(responses)} models are of {RUNS} × {SHORT_REQUESTS:,} simulated "
            f"requests, with which they are clearly within their limits: a time limit of "
            f"{request.solver.time_limit_s:g} s is short of the {FULL_S * len(responses):g} s for more."
        )


def _verified(request: PlanRequest, outcome: PlanOutcome, judge: SloChecker) -> PlanOutcome:
    begun = time.perf_counter()
    verify_with_slo(request, outcome, judge)
    spent = time.perf_counter() - begun
    return replace(outcome, statistics=replace(outcome.statistics, verify_s=spent))


def verify_with_slo(request: PlanRequest, outcome: PlanOutcome, judge: SloChecker | None = None) -> None:
    """Raises InternalFault if a plan violates the request, misses a limit, or differs from its simulation's figures.

    Uses nothing of the search except simulations of the same servers cached in `judge`. Without `judge` the plan is
    simulated again, with its own draws and with others.
    """
    verify(request, outcome)
    judgement = (judge or SloChecker(request)).check(outcome)
    for model in outcome.models:
        if model.name in judgement.failing:
            raise InternalFault(f"The plan fails its check: {model.name} does not hold its max_response_ms.")
        response = judgement.responses.get(model.name)
        if response is not None and response.response_ms != model.response_ms:
            raise InternalFault(
                f"The plan fails its check: response_ms of {model.name} is {response.response_ms}."
            )


def objective_within(plain: PlanRequest, outcome: PlanOutcome, bound: PlanOutcome | None) -> ObjectiveValue:
    """The objective value, with the bound of the problem without queueing at the first level where they differ."""
    same = bound is not None and bound.gpus == outcome.gpus
    routed = bound.objective.routed if bound is not None and same else outcome.objective.routed
    return replace(_bounded_value(plain, outcome, bound), routed=routed)


def _bounded_value(plain: PlanRequest, outcome: PlanOutcome, bound: PlanOutcome | None) -> ObjectiveValue:
    goal = goal_of(plain)
    values = level_values(plain, outcome.gpus, outcome.models)
    r = [model.normalised for model in outcome.models]
    levels = None if bound is None else outcome_levels(bound)
    if levels is None:
        return build_objective_value(plain, values, r)
    sign = -1 if goal.minimised else 1
    proven = _proven_levels([sign * value for value in values], levels)
    level = proven if proven < len(values) else 0
    limit = levels.bound_of(level)
    if limit == float("inf"):
        return build_objective_value(plain, values, r, proven=proven)
    return build_objective_value(plain, values, r, bound=sign * limit, proven=proven)


def _proven_levels(values: Sequence[float], levels: Levels) -> int:
    """Number of leading levels that are proven optimal."""
    count = 0
    for level, value in enumerate(values):
        limit = levels.bound_of(level)
        if limit == float("inf") or not (value >= limit or equal(value, limit)):
            break
        count += 1
        if level >= levels.proven:
            # A bound applies to one level: nothing is known of the following ones.
            break
    return count
