"""Repairs of an infeasible request, each proven by a plan: relaxed figures, more GPUs, or scaled minima."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.planning.request.edit import with_more_gpus, with_relaxation
from torchsplit_core.planning.request.objective import max_min_objective
from torchsplit_core.values import PlanOutcome, PlanRequest

MAX_ADDED_GPUS = 4
"""Most GPUs of a type that are added."""
SCALE_DIGITS = 3
"""Decimals of a scale, rounded down."""

PlanLookup = Callable[[PlanRequest], PlanOutcome | None]
"""The best known outcome of a request."""


@dataclass(frozen=True, slots=True)
class Repair:
    """A change that makes the request feasible, with the changed request and a verified plan of it.

    `gpu_type` and `added_gpus` describe a change of the fleet, `scale` that of the minima.
    """

    kind: Literal["relaxation", "gpus", "scale"]
    request: PlanRequest
    plan: PlanOutcome
    gpu_type: str = ""
    added_gpus: int = 0
    scale: float = 1.0


def find_repairs(request: PlanRequest, outcome: PlanOutcome, lookup: PlanLookup) -> tuple[Repair, ...]:
    """The repairs of an infeasible request with a known plan, the smallest change of figures first."""
    repairs: list[Repair] = []
    if outcome.least_relaxation:
        relaxed = with_relaxation(request, outcome.least_relaxation)
        if plan := _plan_of(relaxed, lookup):
            repairs.append(Repair("relaxation", relaxed, plan))
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
