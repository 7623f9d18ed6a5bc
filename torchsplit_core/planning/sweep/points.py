"""A sweep of one parameter: the requests of a curve, and what their plans prove together.

Nothing is claimed between two neighbouring values but what is monotone: a plan for fewer GPUs, or a stricter minimum,
is also a plan for more GPUs or a looser minimum, and no plan serves a larger share of a larger demand (or weight). So a
bound of one point can hold at another; values are never interpolated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.objective import (
    first_bound,
    goal_of,
    least_cost_objective,
    normalised,
    reached_levels,
)
from torchsplit_core.planning.request.validate import MAX_GPUS, validate
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.values import (
    FleetEntry,
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    Relaxation,
    point_type,
)
from torchsplit_core.values.errors import quoted, suggestion
from torchsplit_core.values.status import SolveStatus

Parameter = Literal["gpus", "weight", "demand", "min_throughput", "touched_gpus", "attainment"]
PARAMETERS: tuple[Parameter, ...] = get_args(Parameter)
MAX_VALUES = 64
"""Most points of a curve; each is a plan."""
COUNTS: tuple[Parameter, ...] = ("gpus", "touched_gpus")
"""Parameters that are whole numbers."""
OF_ALL: tuple[Parameter, ...] = ("touched_gpus", "attainment")
"""Parameters of the whole request, which have no target."""
SHARES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
"""Shares of demand samples for the curve of what holding them takes."""
_FIELD = {"weight": "weight", "demand": "demand_rps", "min_throughput": "min_throughput_rps"}


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """The parameter: the number of GPUs of type `target`, a demand of model `target`, or (`target` empty) how many GPUs
    of the request's current state may change, or which share of its demand samples is held at least cost, over
    ascending values.

    Units: GPUs; weights have none; demand and min_throughput are requests per second. Raises InputFault for anything
    but 1 to 64 finite, ascending values of 0 or more (whole ones for GPUs).
    """

    parameter: Parameter
    target: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        where = f"sweep of {self.parameter}"
        if self.parameter not in PARAMETERS:
            raise InputFault(
                "sweep",
                f"unknown parameter {quoted(self.parameter)}",
                suggestion(self.parameter, PARAMETERS, "parameters"),
            )
        if not 1 <= len(self.values) <= MAX_VALUES:
            raise InputFault(
                where, f"has {len(self.values)} values, not 1 to {MAX_VALUES}", "Ask for fewer steps."
            )
        for value in self.values:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputFault(where, f"value {quoted(value)} is not a finite number", "Give a number.")
            if value < 0:
                raise InputFault(where, f"value {value:g} is below 0", "Begin at 0 or above.")
            if self.parameter in COUNTS and value != int(value):
                raise InputFault(where, f"{value:g} is not a whole number of GPUs", "Round it.")
        for early, late in pairwise(self.values):
            if late <= early:
                raise InputFault(where, f"{late:g} comes after {early:g}", "Sort the values, each once.")


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value and its plan in figures; None if there is no plan, or no bound.

    `objective` and `bound` are of the first level of the request's objective; `bound_from` is the value whose bound
    holds here by monotonicity, if tighter (for an infeasible point: the value that proves it). `least` is the smallest
    normalised throughput; `least_as_asked` the same by the weights and demands of the swept request, so that points of
    a demand or weight compare. `better_at` is a value whose plan also holds here and is better than the plan found.
    """

    value: float
    status: SolveStatus
    outcome: PlanOutcome
    objective: float | None = None
    bound: float | None = None
    bound_from: float | None = None
    gap: float | None = None
    gpus_used: int | None = None
    least: float | None = None
    least_as_asked: float | None = None
    total_rps: float | None = None
    better_at: float | None = None

    @property
    def proven(self) -> bool:
        """Whether no plan is better at the first level."""
        return self.status == "optimal" or self.gap == 0.0


def spread_values(parameter: Parameter, start: float, stop: float, steps: int) -> tuple[float, ...]:
    """`steps` evenly spread values from `start` to `stop`, to six figures; whole and distinct for GPUs.

    Raises InputFault for bounds that are no numbers or not ascending, and for steps outside 1 to 64.
    """
    where = f"sweep of {parameter}"
    for value in (start, stop):
        if not math.isfinite(value):
            raise InputFault(where, f"has the end {value}, not a finite number", "Give a number.")
    if start > stop:
        raise InputFault(where, f"begins at {start:g}, above its end {stop:g}", "Swap the two.")
    if not 1 <= steps <= MAX_VALUES:
        raise InputFault(where, f"has {steps} steps, not 1 to {MAX_VALUES}", "Ask for fewer or more steps.")
    gaps = max(1, steps - 1)
    values = [start + (stop - start) * number / gaps for number in range(steps)]
    if parameter in COUNTS:
        return tuple(sorted({float(round(value)) for value in values}))
    return tuple(sorted({float(f"{value:.6g}") for value in values}))


def sweep_requests(request: PlanRequest, sweep: SweepRequest) -> tuple[tuple[float, PlanRequest], ...]:
    """The request at every value. Raises InputFault for a target it does not have, or an invalid value."""
    requests = tuple((value, request_at(request, sweep, value)) for value in sweep.values)
    for _, changed in requests:
        validate(changed)
    return requests


def request_at(request: PlanRequest, sweep: SweepRequest, value: float) -> PlanRequest:
    """The request with the parameter at one value. Raises InputFault for a target it does not have."""
    if sweep.parameter == "gpus":
        return replace(request, gpus=_fleet_with_count(request, sweep.target, int(value)))
    if sweep.parameter == "touched_gpus":
        return replace(request, objective=replace(request.objective, max_touched_gpus=int(value)))
    if sweep.parameter == "attainment":
        return replace(request, objective=replace(least_cost_objective(request.objective), attainment=value))
    known = [model.name for model in request.models]
    if sweep.target not in known:
        raise InputFault(
            f"sweep of {sweep.parameter}",
            f"unknown model {quoted(sweep.target)}",
            suggestion(sweep.target, known, "models"),
        )

    def with_value(model: PlanModel) -> PlanModel:
        if model.name != sweep.target:
            return model
        return replace(model, **{_FIELD[sweep.parameter]: value})  # type: ignore[arg-type]

    return replace(request, models=tuple(map(with_value, request.models)))


def present_value(request: PlanRequest, parameter: Parameter, target: str) -> float | None:
    """The request's own value; None for a missing minimum or limit. Raises InputFault for an unknown model."""
    if parameter == "gpus":
        return float(sum(entry.count for entry in request.gpus if entry.type == target))
    if parameter == "touched_gpus":
        most = request.objective.max_touched_gpus
        return None if most is None else float(most)
    if parameter == "attainment":
        return request.objective.attainment
    for model in request.models:
        if model.name == target:
            value = getattr(model, _FIELD[parameter])
            return None if value is None else float(value)
    raise InputFault(
        f"sweep of {parameter}",
        f"unknown model {quoted(target)}",
        suggestion(target, [model.name for model in request.models], "models"),
    )


def visiting_order(count: int) -> tuple[int, ...]:
    """Every position once: both ends, then the middle of each open interval, so that a curve shows its shape early."""
    positions = dict.fromkeys((0, count - 1)) if count else {}
    gaps = [(0, count - 1)]
    while gaps:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            positions[middle] = None
            gaps += [(low, middle), (middle, high)]
    return tuple(positions)


def sweep_points(
    request: PlanRequest, sweep: SweepRequest, outcomes: Mapping[float, PlanOutcome]
) -> tuple[SweepPoint, ...]:
    """The points solved so far, ascending, each with the tightest bound that any of them proves."""
    points = [_sweep_point(request, value, outcomes[value]) for value in sweep.values if value in outcomes]
    upward, downward = _monotone(request, sweep)
    maximised = not goal_of(request_at(request, sweep, sweep.values[0])).minimised
    tight = []
    for point in points:
        # `above` and `below`: points whose best value is proven to be no lower, no higher than here.
        above = [o for o in points if o is not point and (upward, downward)[o.value < point.value]]
        below = [o for o in points if o is not point and (downward, upward)[o.value < point.value]]
        better, worse = (above, below) if maximised else (below, above)
        tight.append(_with_others_bounds(point, better, worse, maximised))
    return tuple(tight)


def undominated_points(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """The plans that no other beats in GPUs used and the worst-served model's r; fewest GPUs first."""
    plans = [point for point in points if point.gpus_used is not None and point.least_as_asked is not None]
    plans.sort(key=lambda point: (point.gpus_used or 0, -(point.least_as_asked or 0.0), point.value))
    front: list[SweepPoint] = []
    for point in plans:
        if not front or (point.least_as_asked or 0.0) > (front[-1].least_as_asked or 0.0) * (1 + TOLERANCE):
            front.append(point)
    return tuple(front)


def least_served(request: PlanRequest, outcome: PlanOutcome) -> float | None:
    """The smallest normalised throughput by this request's weights, demands and caps; None without a plan."""
    rates = {model.name: model.throughput_rps for model in outcome.models}
    return min(
        (normalised(spec, rates[spec.name]) for spec in request.models if spec.name in rates), default=None
    )


def describe_point(point: SweepPoint) -> str:
    """Why there is no plan, or a remark on the plan; empty for none."""
    if point.status == "infeasible":
        if point.bound_from is not None:
            return f"impossible, as it is at {point.bound_from:g} already"
        reasons = [conflict.message for conflict in point.outcome.conflicts]
        reasons += [_describe_relaxation(change) for change in point.outcome.least_relaxation or ()]
        return (
            "; ".join(reasons) or "impossible; which demands stand in the way was not found in the time given"
        )
    if point.status == "timeout":
        return " ".join(("no plan found in time, none ruled out", *point.outcome.warnings))
    if point.better_at is not None:
        return f"the plan at {point.better_at:g} also stands here and is better: search longer"
    return ""


def _describe_relaxation(change: Relaxation) -> str:
    return f"{change.model}: {change.demand} {change.old:g} → {change.new:g} would help"


def _sweep_point(request: PlanRequest, value: float, outcome: PlanOutcome) -> SweepPoint:
    if outcome.status not in ("optimal", "feasible"):
        return SweepPoint(value, outcome.status, outcome)
    best, bound = reached_levels(outcome.objective)[0], first_bound(outcome.objective)
    return SweepPoint(
        value,
        outcome.status,
        outcome,
        objective=best,
        bound=bound,
        gap=_gap(best, bound),
        gpus_used=sum(gpu.used for gpu in outcome.gpus),
        least=min((model.normalised for model in outcome.models), default=None),
        least_as_asked=least_served(request, outcome),
        total_rps=sum(model.throughput_rps for model in outcome.models),
    )


def _with_others_bounds(
    point: SweepPoint, better: Sequence[SweepPoint], worse: Sequence[SweepPoint], maximised: bool
) -> SweepPoint:
    """The point with what others prove. `better`: their best value is no worse than here; `worse`: no better."""
    if point.status == "timeout":
        proof = next((o for o in better if o.status == "infeasible"), None)
        return replace(point, status="infeasible", bound_from=proof.value) if proof else point
    if point.objective is None:
        return point
    sign = 1.0 if maximised else -1.0
    bounds = [(sign * o.bound, o.value) for o in better if o.bound is not None]
    bound, origin = min(bounds, default=(math.inf, 0.0))
    slack = TOLERANCE * abs(point.objective)
    if bound < math.inf and (point.bound is None or bound < sign * point.bound - slack):
        # The value reached limits the bound, up to rounding.
        tight_bound = sign * max(bound, sign * point.objective)
        point = replace(point, bound=tight_bound, bound_from=origin, gap=_gap(point.objective, tight_bound))
    values = [(sign * o.objective, o.value) for o in worse if o.objective is not None]
    best_value, better_at = max(values, default=(-math.inf, 0.0))
    assert point.objective is not None
    return replace(point, better_at=better_at) if best_value > sign * point.objective + slack else point


def _gap(value: float | None, bound: float | None) -> float | None:
    if value is None or bound is None:
        return None
    base = max(abs(value), abs(bound))
    return 0.0 if equal(value, bound) else abs(bound - value) / base


def _monotone(request: PlanRequest, sweep: SweepRequest) -> tuple[bool, bool]:
    """Whether the best value of the objective never falls, and never rises, as the parameter grows."""
    goal = goal_of(request_at(request, sweep, sweep.values[0]))
    if sweep.parameter in COUNTS:
        return not goal.minimised, goal.minimised
    if sweep.parameter in ("min_throughput", "attainment"):
        return goal.minimised, not goal.minimised
    trend = goal.by_weight
    if sweep.parameter == "demand":
        capped = any(model.cap_at_demand for model in request.models if model.name == sweep.target)
        trend = goal.by_demand if capped else goal.by_uncapped_demand
    return trend != "falls", trend != "rises"


def _fleet_with_count(request: PlanRequest, kind: str, count: int) -> tuple[FleetEntry, ...]:
    """The fleet with `count` GPUs of a type: its entries in order, the last one extended."""
    gpu_type(kind)
    if count > MAX_GPUS:
        raise InputFault(
            "sweep of gpus", f"asks for {count} GPUs, at most {MAX_GPUS} are planned", "End lower."
        )
    entries_of_type = [entry for entry in request.gpus if entry.type == kind]
    if not entries_of_type and not any(
        point.gpu_type == point_type(kind) for model in request.models for point in model.allowed_points
    ):
        raise InputFault(
            "sweep of gpus",
            f"{kind} is not in the fleet, and no model has a point on it",
            "Choose another type.",
        )
    left, entries = count, []
    for entry in request.gpus:
        if entry.type != kind:
            entries.append(entry)
            continue
        taken = min(left, entry.count)
        left -= taken
        if entry is entries_of_type[-1] and left and entry.id is None:
            taken, left = taken + left, 0
        if taken:
            entries.append(replace(entry, count=taken))
    if left:
        more = (
            replace(entries_of_type[-1], id=None, count=left)
            if entries_of_type
            else FleetEntry(kind, count=left)
        )
        entries.append(more)
    return tuple(entries)
