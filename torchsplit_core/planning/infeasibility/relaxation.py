"""The least relaxation: the changes of figures, least in the sum of relative changes, that make a request feasible.

Minima may be lowered by a share e[m], latency limits raised by a share f[m]; the sum of all e and f is minimised over
the exact formulation (families min_throughput and latency_limit with their slacks).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.model import Mode
from torchsplit_core.planning.formulation.solution import read_solution
from torchsplit_core.planning.fractional.fixed_layouts import MAX_FIXED_TENANCIES, tenancy_count
from torchsplit_core.planning.infeasibility.feasibility_check import is_feasible
from torchsplit_core.planning.infeasibility.notes import NO_RELAXATION, SMALLER, WHOLE_OR_MINIMA
from torchsplit_core.planning.outcome.assignment import assign_integer, assign_shares, build_planned_gpus
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.outcome.resilience import rates_after_worst_failure
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.edit import with_relaxation
from torchsplit_core.planning.request.objective import requires_resilience
from torchsplit_core.planning.timing import OutOfTime, build_deadline, partial_deadline
from torchsplit_core.solver.pyomo_model import pyo, solve
from torchsplit_core.values import PlannedModel, PlanRequest, Relaxation

NEGLIGIBLE_CHANGE = 1e-7
"""Smaller relative changes count as none."""

PROOF_TOLERANCE = 1e-6
"""Sums of relative changes closer than this to their bound are proven."""

SIGNIFICANT_DIGITS = 10
"""Significant digits of a relaxed figure, rounded to the side that is easier to meet."""


@dataclass(frozen=True)
class LeastRelaxation:
    """The changes, and notes if they are not proven to be the least."""

    changes: tuple[Relaxation, ...] | None
    notes: tuple[str, ...] = ()


def least_relaxation(request: PlanRequest, deadline: float) -> LeastRelaxation:
    """The least relaxation of an infeasible request; changes None if none is found in time."""
    shared = request.sharing == "fractional"
    limited = any(spec.max_latency_ms is not None for spec in request.models)
    # A share's latency is 1/share: with relaxed limits it is no longer linear.
    steps: list[tuple[Mode, bool]] = [("exclusive", True)]
    if shared:
        steps.append(("concrete", False))
    searches = [
        _solve_relaxation(request, mode, with_latency, partial_deadline(deadline, 1 / (len(steps) - number)))
        for number, (mode, with_latency) in enumerate(steps)
    ]
    relaxations = [relaxation for relaxation in searches if relaxation is not None]
    if not relaxations:
        return LeastRelaxation(None, (NO_RELAXATION,))
    total, changes, _ = min(relaxations, key=lambda item: item[0])
    if is_feasible(with_relaxation(request, changes), deadline) is False:
        return LeastRelaxation(None, ("The relaxation found fails its own check.",))
    # Whole slices are shares of 1: without limits the program of shares is the least of both.
    decisive = searches if limited else searches[-1:]
    searched = all(relaxation is not None and relaxation[2] for relaxation in decisive)
    if shared and (limited or not searched):
        bound = _least_without_limits(request, deadline)
        if bound is not None and total <= bound + PROOF_TOLERANCE:
            return LeastRelaxation(changes)
    notes: tuple[str, ...] = () if searched else (SMALLER,)
    if shared and limited:
        notes += (WHOLE_OR_MINIMA,)
    return LeastRelaxation(changes, notes)


def _least_without_limits(request: PlanRequest, deadline: float) -> float | None:
    """A lower bound of every relaxation with shares; None if none is proven before the deadline.

    It lowers minima alone, of the request with pooled shares and without limits on service times. Whatever raised
    limits allow, no limit allows too, so the minima of every relaxation give way by as much at least.
    """
    free = replace(request, models=tuple(replace(spec, max_latency_ms=None) for spec in request.models))
    problem = build_problem(free, elastic=True)
    if not problem.complete:
        return None
    try:
        model = build(problem, "pooled", until=build_deadline(deadline)).model
    except OutOfTime:
        return None
    model.objective = pyo.Objective(expr=sum(model.given_up.values()))
    return solve(model, deadline - time.perf_counter()).bound


def _solve_relaxation(
    request: PlanRequest, mode: Mode, with_latency: bool, deadline: float
) -> tuple[float, tuple[Relaxation, ...], bool] | None:
    mode_request = replace(request, sharing="exclusive") if mode == "exclusive" else request
    per_gpu = mode == "concrete"
    problem = build_problem(mode_request, per_gpu=per_gpu, elastic=True, elastic_latency=with_latency)
    if per_gpu and tenancy_count(problem) > MAX_FIXED_TENANCIES:
        return None
    try:
        formulation = build(problem, mode, until=build_deadline(deadline))
    except OutOfTime:
        return None
    model = formulation.model
    slacks = list(model.given_up.values())
    if with_latency:
        slacks += list(model.longer.values())
    model.objective = pyo.Objective(expr=sum(slacks))
    result = solve(model, deadline - time.perf_counter())
    if result.status not in ("optimal", "feasible"):
        return None
    solution = read_solution(formulation, result)
    assignment = (
        assign_integer(formulation, solution) if mode == "exclusive" else assign_shares(formulation, solution)
    )
    planned = build_planned_models(problem, assignment)
    rates = [model.throughput_rps for model in planned]
    if requires_resilience(request):
        rates = list(rates_after_worst_failure(request, build_planned_gpus(request, assignment)))
    changes = _shortfall_changes(request, planned, rates)
    total = sum(abs(change.new - change.old) / change.old for change in changes)
    return total, changes, result.status == "optimal"


def _shortfall_changes(
    request: PlanRequest, planned: Sequence[PlannedModel], rates: Sequence[float]
) -> tuple[Relaxation, ...]:
    """Each model's shortfall in the plan; `rates` are the requests/s that count for its minimum."""
    changes = []
    for spec, model, rate in zip(request.models, planned, rates, strict=True):
        least, limit = spec.min_throughput_rps, spec.max_latency_ms
        if least and rate < least * (1 - NEGLIGIBLE_CHANGE):
            changes.append(Relaxation(spec.name, "min_throughput_rps", least, _round(rate, math.floor)))
        if (
            limit is not None
            and model.latency_ms is not None
            and model.latency_ms > limit * (1 + NEGLIGIBLE_CHANGE)
        ):
            changes.append(
                Relaxation(spec.name, "max_latency_ms", limit, _round(model.latency_ms, math.ceil))
            )
    return tuple(changes)


def _round(value: float, rounding: Callable[[float], int]) -> float:
    """To SIGNIFICANT_DIGITS, down for a minimum and up for a limit."""
    if value == 0:
        return 0.0
    scale = 10.0 ** (SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))))
    # A whole number that is off by rounding alone stays whole.
    if abs(round(value * scale) - value * scale) < 1e-3:
        return round(value * scale) / scale
    return rounding(value * scale) / scale
