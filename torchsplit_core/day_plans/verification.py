"""Verifies a day from its request alone: every plan and transition by its own check, the figures from the words of the
contract; nothing of the search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchsplit_core.day_plans.window_requests import request_of_window, static_request, windows_of
from torchsplit_core.hardware import peaks
from torchsplit_core.hardware.host_state.engine_groups import with_common_groups
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.verification.outcome import violations
from torchsplit_core.transition import state_of_plan, transition_fault
from torchsplit_core.values import BothSides, DayOutcome, InternalFault, PlanOutcome, PlanRequest

_TOLERANCE = 1e-6


def verify_day(request: PlanRequest, outcome: DayOutcome) -> None:
    """Raise InternalFault for the first thing in which the day breaks its request or the contract.

    LLMs of the request need their engines as points.
    """
    for fault in day_faults(request, outcome):
        raise InternalFault(f"The day fails its check: {fault}")


def day_faults(request: PlanRequest, outcome: DayOutcome) -> Iterator[str]:
    """Everything that is wrong with the day, a clause each."""
    names = [window.name for window in windows_of(request)]
    if [window.name for window in outcome.windows] != names:
        yield "its windows are not those of the request, in their order"
        return
    if outcome.request_sha256 not in (None, request_hash(request)):
        yield "answers another request"
        return
    yield from _plan_faults(request, outcome)
    yield from _transition_faults(request, outcome)
    yield from _figure_faults(request, outcome)


def _plan_faults(request: PlanRequest, outcome: DayOutcome) -> Iterator[str]:
    """Each plan answers the request of its window, from the plan before it."""
    before: PlanOutcome | None = None
    for window in outcome.windows:
        asked = request_of_window(request, window.name, before)
        yield from (f"{window.name}: {fault}" for fault in violations(asked, window.plan))
        before = window.plan if window.plan.gpus else before
    static = static_request(request)
    yield from (f"static: {fault}" for fault in violations(static, outcome.static))


def _transition_faults(request: PlanRequest, outcome: DayOutcome) -> Iterator[str]:
    """Each transition leads from its window's plan to the next one's, and touches no more GPUs than allowed."""
    limit = request.objective.max_touched_gpus
    for window, following in zip(outcome.windows, (*outcome.windows[1:], outcome.windows[0]), strict=True):
        change = window.transition
        if (change is None) != (not window.plan.gpus or not following.plan.gpus):
            yield f"{window.name}: has {'no' if change is None else 'a'} transition to {following.name}"
        elif change is not None:
            # Engines on several GPUs have names of their plan alone, which a transition gives anew.
            begun = with_common_groups(state_of_plan(window.plan), following.plan.gpus)
            fault = transition_fault(following.plan, begun, change)
            if fault is not None:
                yield f"{window.name}: its transition is at fault: {fault}"
            if limit is not None and change.touched_gpus > limit:
                yield f"{window.name}: its transition touches {change.touched_gpus} GPUs, at most {limit} may be"


def _figure_faults(request: PlanRequest, outcome: DayOutcome) -> Iterator[str]:
    plans = [window.plan for window in outcome.windows]
    hours = [window.minutes[1] / 60 for window in windows_of(request)]
    used = [sum(any(item.tenants for item in gpu.slices) for gpu in plan.gpus) for plan in plans]
    static = outcome.static
    static_used = sum(any(item.tenants for item in gpu.slices) for gpu in static.gpus)
    yield from _sides_fault(
        "gpu_hours",
        outcome.gpu_hours,
        plans,
        static,
        (math.fsum(map(math.prod, zip(used, hours, strict=True))), 24.0 * static_used),
    )
    yield from _sides_fault(
        "worst_normalised",
        outcome.worst_normalised,
        plans,
        static,
        (_worst(plans), _worst([static])),
    )
    yield from _energy_faults(outcome, plans, hours)
    lost = [
        (item.model_seconds_below_demand or 0.0) * (item.demand_rps or 0.0)
        for window in outcome.windows
        if window.transition is not None
        for item in window.transition.during
    ]
    if outcome.lost_requests is not None and not _same(outcome.lost_requests, math.fsum(lost)):
        yield f"claims {outcome.lost_requests} lost requests, and they are {math.fsum(lost)}"
    if outcome.cost_per_day is not None:
        costs = [(plan.cost_per_hour or 0.0) * length for plan, length in zip(plans, hours, strict=True)]
        true = (math.fsum(costs), 24.0 * (static.cost_per_hour or 0.0))
        for name, claimed, cost in zip(
            ("windows", "static"),
            (outcome.cost_per_day.windows, outcome.cost_per_day.static),
            true,
            strict=True,
        ):
            if claimed is not None and not _same(claimed, cost):
                yield f"claims a cost of {claimed} a day ({name}), and it is {cost}"


def _energy_faults(
    outcome: DayOutcome, plans: Sequence[PlanOutcome], hours: Sequence[float]
) -> Iterator[str]:
    """The high end is the limits of the cards in use × hours; the low end is not above it."""
    energy = outcome.energy_kwh_per_day
    if energy is None:
        return
    for name, claimed, side in (
        ("windows", energy.windows, plans),
        ("static", energy.static, [outcome.static] * len(plans)),
    ):
        if claimed is None:
            # Its plans may use what has no limit: the cores of a host.
            continue
        limits = [[peaks(gpu.type).tdp_w or 0.0 for gpu in plan.gpus if gpu.used] for plan in side]
        most = math.fsum(
            math.fsum(watts) * length / 1000 for watts, length in zip(limits, hours, strict=True)
        )
        if not (_same(claimed.high, most) and 0 <= claimed.low <= claimed.high):
            yield f"claims {claimed.low} to {claimed.high} kWh a day ({name}), and the limits of its cards are {most}"


def _sides_fault(
    what: str,
    claimed: BothSides,
    plans: Sequence[PlanOutcome],
    static: PlanOutcome,
    true: tuple[float, float],
) -> Iterator[str]:
    """A figure is there exactly where its side has plans, and is what they give."""
    known = (all(plan.gpus for plan in plans), bool(static.gpus))
    for name, figure, is_known, value in zip(
        ("windows", "static"), (claimed.windows, claimed.static), known, true, strict=True
    ):
        if (figure is None) is is_known or (figure is not None and not _same(figure, value)):
            yield f"claims {what}.{name} {figure}, and it is {value if is_known else None}"


def _worst(plans: Sequence[PlanOutcome]) -> float:
    return min((model.normalised for plan in plans for model in plan.models), default=0.0)


def _same(first: float, second: float) -> bool:
    return abs(first - second) <= _TOLERANCE * max(abs(first), abs(second), 1e-300)
