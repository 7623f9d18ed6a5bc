"""Repairs of an infeasible request, each proven by a plan: relaxed figures, raised limits, more GPUs, scaled minima."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torchsplit_core.planning.request.edit import with_more_gpus, with_relaxation
from torchsplit_core.planning.request.objective import max_min_objective
from torchsplit_core.values import PlanOutcome, PlanRequest

MAX_ADDED_GPUS = 4
"""Most GPUs of a type that are added."""
SCALE_DIGITS = 3
"""Decimals of a scale, rounded down."""
LIMIT_FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
"""Factors of the limits that clash, tried in turn."""
LIMITS = ("max_latency_ms", "max_response_ms")

PlanLookup = Callable[[PlanRequest], PlanOutcome | None]
"""The best known outcome of a request."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A change that makes the request feasible, with the changed request and a verified plan of it.

    `gpu_type` and `added_gpus` describe a change of the fleet, `scale` that of the minima or of the limits, `models`
    those of the limits.
    """

    kind: Literal["relaxation", "limits", "gpus", "scale"]
    request: PlanRequest
    plan: PlanOutcome
    gpu_type: str = ""
    added_gpus: int = 0
    scale: float = 1.0
    models: tuple[str, ...] = ()


def find_repairs(request: PlanRequest, outcome: PlanOutcome, lookup: PlanLookup) -> tuple[Repair, ...]:
    """The repairs of an infeasible request with a known plan, the smallest change of figures first."""
    repairs: list[Repair] = []
    if outcome.least_relaxation:
        relaxed = with_relaxation(request, outcome.least_relaxation)
        if plan := _plan_of(relaxed, lookup):
            repairs.append(Repair("relaxation", relaxed, plan))
    for factor in LIMIT_FACTORS if (limits := _clashing_limits(outcome)) else ():
        raised = with_scaled_limits(request, limits, factor)
        if plan := _plan_of(raised, lookup):
            names = tuple(dict.fromkeys(model for model, _ in limits))
            # Lowering a minimum to nothing changes it by 100 %, a limit that is far too short must change by more.
            first = any(change.new == 0 for change in outcome.least_relaxation or ())
            repairs.insert(
                0 if first else len(repairs), Repair("limits", raised, plan, scale=factor, models=names)
            )
            break
    for index, entry in enumerate(request.gpus):
        for extra in range(1, MAX_ADDED_GPUS + 1):
            larger = with_more_gpus(request, index, extra)
            if larger is not None and (plan := _plan_of(larger, lookup)):
                if not any(
                    repair.gpu_type == entry.type and repair.added_gpus <= extra for repair in repairs
                ):
                    repairs.append(Repair("gpus", larger, plan, entry.type, extra))
                break
    scale = _feasible_scale(request, lookup)
    if scale is not None and (plan := _plan_of(with_scaled_minima(request, scale), lookup)):
        repairs.append(Repair("scale", with_scaled_minima(request, scale), plan, scale=scale))
    return tuple(repairs)


def repair_requests(request: PlanRequest, outcome: PlanOutcome, lookup: PlanLookup) -> Iterator[PlanRequest]:
    """Requests to plan one after the other for `find_repairs`; skips those that earlier outcomes make needless.

    `outcome` says why there is no plan.
    """
    if outcome.least_relaxation:
        yield with_relaxation(request, outcome.least_relaxation)
    for factor in LIMIT_FACTORS if (limits := _clashing_limits(outcome)) else ():
        raised = with_scaled_limits(request, limits, factor)
        yield raised
        raised_outcome = lookup(raised)
        if raised_outcome is None or raised_outcome.status != "infeasible":
            break
    # The first fleet entry of each type.
    for kind in dict.fromkeys(entry.type for entry in request.gpus):
        index = next(number for number, entry in enumerate(request.gpus) if entry.type == kind)
        for extra in range(1, MAX_ADDED_GPUS + 1):
            larger = with_more_gpus(request, index, extra)
            if larger is None:
                break
            yield larger
            larger_outcome = lookup(larger)
            if larger_outcome is None or larger_outcome.status != "infeasible":
                break
    if (scale_problem := scale_request(request)) is not None:
        yield scale_problem
        if (scale := _feasible_scale(request, lookup)) is not None:
            yield with_scaled_minima(request, scale)


def _clashing_limits(outcome: PlanOutcome) -> tuple[tuple[str, str], ...]:
    """Model and limit of each that conflicts name; none if the least relaxation raises one already."""
    changes = outcome.least_relaxation or ()
    if any(change.demand in LIMITS for change in changes):
        return ()
    demands = (demand for conflict in outcome.conflicts for demand in conflict.demands)
    return tuple(
        dict.fromkeys((item.model, item.demand) for item in demands if item.model and item.demand in LIMITS)
    )


def with_scaled_limits(request: PlanRequest, limits: Sequence[tuple[str, str]], factor: float) -> PlanRequest:
    """The request with these limits (model, field) times `factor`."""
    models = []
    for model in request.models:
        raised: dict[str, Any] = {
            limit: factor * getattr(model, limit) for name, limit in limits if name == model.name
        }
        models.append(replace(model, **raised))
    return replace(request, models=tuple(models))


def scale_request(request: PlanRequest) -> PlanRequest | None:
    """The request whose best value is the largest scale at which its minima are feasible; None without minima."""
    if not any(model.min_throughput_rps for model in request.models):
        return None
    models = tuple(
        replace(
            model,
            demand_rps=model.min_throughput_rps,
            weight=1.0,
            min_throughput_rps=None,
            cap_at_demand=False,
            tier=0,
        )
        for model in request.models
        if model.min_throughput_rps
    )
    names = {model.name for model in models}
    if len(models) < len(request.models):
        # A model without a minimum may get nothing; its co-locations then bind nobody.
        pairs = tuple(pair for pair in request.colocations if names.issuperset(pair.models))
        request = replace(request, colocations=pairs)
    return replace(request, models=models, objective=max_min_objective(request.objective))


def with_scaled_minima(request: PlanRequest, scale: float) -> PlanRequest:
    """The request with every minimum times `scale`, rounded down to six digits."""
    return replace(
        request,
        models=tuple(
            replace(model, min_throughput_rps=_round_down(scale * model.min_throughput_rps))
            if model.min_throughput_rps
            else model
            for model in request.models
        ),
    )


def _feasible_scale(request: PlanRequest, lookup: PlanLookup) -> float | None:
    """The largest scale below 1 that is known to be feasible."""
    scale_problem = scale_request(request)
    outcome = None if scale_problem is None else lookup(scale_problem)
    if outcome is None or outcome.objective.value is None:
        return None
    scale = math.floor(outcome.objective.value * 10**SCALE_DIGITS) / 10**SCALE_DIGITS
    return scale if 0 < scale < 1 else None


def _plan_of(request: PlanRequest, lookup: PlanLookup) -> PlanOutcome | None:
    outcome = lookup(request)
    return outcome if outcome is not None and outcome.gpus else None


def _round_down(value: float) -> float:
    digits = 5 - math.floor(math.log10(value)) if value > 0 else 0
    return math.floor(value * 10.0**digits) / 10.0**digits if digits < 300 else value
