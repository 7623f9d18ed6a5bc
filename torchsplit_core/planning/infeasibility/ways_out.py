"""Changes that make an infeasible request possible, each to be shown by a plan: the least relaxation, more GPUs of a
type, every minimum scaled down alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.planning.request.edit import with_more_gpus, with_relaxation
from torchsplit_core.planning.request.objective import for_the_worst
from torchsplit_core.values import PlanOutcome, PlanRequest

MOST_MORE = 4
"""GPUs of a type that are added at most."""
SCALE_DIGITS = 3
"""Digits after the point of a scale, rounded down."""

Known = Callable[[PlanRequest], PlanOutcome | None]
"""The best known answer of a request."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """A change that makes the request possible, with the changed request and a verified plan of it.

    `gpu_type` and `more` are of a change of the fleet, `scale` is that of the minima.
    """

    kind: Literal["relaxation", "gpus", "scale"]
    request: PlanRequest
    plan: PlanOutcome
    gpu_type: str = ""
    more: int = 0
    scale: float = 1.0


def ways_out(request: PlanRequest, outcome: PlanOutcome, known: Known) -> tuple[WayOut, ...]:
    """The ways out of an infeasible request of which a plan is known, the least change of figures first."""
    ways: list[WayOut] = []
    if outcome.least_relaxation:
        eased = with_relaxation(request, outcome.least_relaxation)
        if plan := _plan_of(eased, known):
            ways.append(WayOut("relaxation", eased, plan))
    for place, entry in enumerate(request.gpus):
        for more in range(1, MOST_MORE + 1):
            larger = with_more_gpus(request, place, more)
            if larger is not None and (plan := _plan_of(larger, known)):
                if not any(way.gpu_type == entry.type and way.more <= more for way in ways):
                    ways.append(WayOut("gpus", larger, plan, entry.type, more))
                break
    scale = _known_scale(request, known)
    if scale is not None and (plan := _plan_of(scaled(request, scale), known)):
        ways.append(WayOut("scale", scaled(request, scale), plan, scale=scale))
    return tuple(ways)


def questions(request: PlanRequest, outcome: PlanOutcome, known: Known) -> Iterator[PlanRequest]:
    """Requests to be answered one after the other, so that `ways_out` has its plans; what the answers before make
    needless is not asked. `outcome` says why there is no plan."""
    if outcome.least_relaxation:
        yield with_relaxation(request, outcome.least_relaxation)
    # Of each type the entry that comes first.
    for kind in dict.fromkeys(entry.type for entry in request.gpus):
        place = next(number for number, entry in enumerate(request.gpus) if entry.type == kind)
        for more in range(1, MOST_MORE + 1):
            larger = with_more_gpus(request, place, more)
            if larger is None:
                break
            yield larger
            answer = known(larger)
            if answer is None or answer.status != "infeasible":
                break
    if (question := scale_question(request)) is not None:
        yield question
        if (scale := _known_scale(request, known)) is not None:
            yield scaled(request, scale)


def scale_question(request: PlanRequest) -> PlanRequest | None:
    """The request whose best value is the largest scale at which its minima can be met; None without minima."""
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
        # A model that is owed nothing may get nothing; what it shares a GPU with is then free as well.
        pairs = tuple(pair for pair in request.colocations if names.issuperset(pair.models))
        request = replace(request, colocations=pairs)
    return replace(request, models=models, objective=for_the_worst(request.objective))


def scaled(request: PlanRequest, scale: float) -> PlanRequest:
    """The request with every minimum times `scale`, to six digits, rounded down."""
    return replace(
        request,
        models=tuple(
            replace(model, min_throughput_rps=_down(scale * model.min_throughput_rps))
            if model.min_throughput_rps
            else model
            for model in request.models
        ),
    )


def _known_scale(request: PlanRequest, known: Known) -> float | None:
    """The largest scale that is known to be possible, below 1."""
    question = scale_question(request)
    answer = None if question is None else known(question)
    if answer is None or answer.objective.value is None:
        return None
    scale = math.floor(answer.objective.value * 10**SCALE_DIGITS) / 10**SCALE_DIGITS
    return scale if 0 < scale < 1 else None


def _plan_of(request: PlanRequest, known: Known) -> PlanOutcome | None:
    answer = known(request)
    return answer if answer is not None and answer.gpus else None


def _down(value: float) -> float:
    digits = 5 - math.floor(math.log10(value)) if value > 0 else 0
    return math.floor(value * 10.0**digits) / 10.0**digits if digits < 300 else value
