"""What a share of samples is worth: a plan for every second of them, judged by the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.outcome.held_samples import counted_rates
from torchsplit_core.planning.request.objective import (
    count_held,
    has_penalties,
    least_cost_objective,
    required_samples,
    sample_count,
)
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, ignore_progress

PLANNED, HELD_OUT = slice(0, None, 2), slice(1, None, 2)


def planned_samples(request: PlanRequest) -> PlanRequest:
    """The request with the first, third, … sample. Raises InputFault if that leaves none out."""
    counts = {len(model.demand_samples) for model in request.models}
    if min(counts, default=0) < 2:
        raise InputFault(
            "demand_samples", "has fewer than two samples, so none can be held out", "Give more samples."
        )
    return of_samples(request, PLANNED)


def of_samples(request: PlanRequest, chosen: slice) -> PlanRequest:
    """The request with these of its samples, for example every second one."""
    models = (replace(model, demand_samples=model.demand_samples[chosen]) for model in request.models)
    return replace(request, models=tuple(models))


def held_of_others(request: PlanRequest, outcome: PlanOutcome) -> tuple[int, int]:
    """How many of the second, fourth, … samples of the request a plan holds, and how many there are."""
    others = of_samples(request, HELD_OUT)
    rates = counted_rates(others, outcome.gpus, outcome.models)
    return count_held([model.demand_samples for model in others.models], rates), sample_count(others)


@dataclass(frozen=True, slots=True)
class HeldOutPoint:
    """A plan for every second sample, and how many of the `count` others it holds (None: there is no plan).

    `asked`: the share of its own samples that it holds at least cost; None: the largest that the fleet holds.
    """

    asked: float | None
    outcome: PlanOutcome
    held: int | None
    count: int


def held_out_curve(
    request: PlanRequest,
    shares: Sequence[float],
    planner: Callable[[PlanRequest, Progress], PlanOutcome],
    *,
    progress: Progress = ignore_progress,
) -> tuple[HeldOutPoint, ...]:
    """A point for each share in rising order, then one for the largest share of the fleet.

    Shares that ask for as many samples are one plan. Each plan has an equal part of the time limit. With penalties in
    the objective there is no largest share. Raises InputFault for fewer than two samples, and as the planner does.
    """
    half = planned_samples(request)
    questions = [_with_share(half, share) for share in sorted(set(shares))]
    if not has_penalties(request.objective):
        questions.append(replace(half, objective=replace(half.objective, kind="attainment", attainment=None)))
    seconds = request.solver.time_limit_s / len({required_samples(question) for question in questions})
    plans: dict[int | None, PlanOutcome] = {}
    count = sample_count(of_samples(request, HELD_OUT))
    points = []
    for number, question in enumerate(questions):
        begun = number / len(questions)

        def report(part: float, message: str, begun: float = begun) -> None:
            progress(begun + part / len(questions), message)

        key = required_samples(question)
        if key not in plans:
            limited = replace(question, solver=replace(question.solver, time_limit_s=seconds))
            plans[key] = planner(limited, report)
        held = held_of_others(request, plans[key])[0] if plans[key].gpus else None
        points.append(HeldOutPoint(question.objective.attainment, plans[key], held, count))
    return tuple(points)


def _with_share(request: PlanRequest, share: float) -> PlanRequest:
    objective = replace(least_cost_objective(request.objective), attainment=share)
    return replace(request, objective=objective)
