"""A sweep in words and figures: headings, units, the answer, the table. No streamlit in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.format.badges import Badge
from torchsplit_core.latency_slo.worst_response import LOOK_REQUESTS, LOOK_RUNS, WorstResponse
from torchsplit_core.pictures.numbers import all_measured, counted, exact, percent, short
from torchsplit_core.planning.request.objective import goal_of, has_penalties, has_tiers
from torchsplit_core.planning.sweep import points as sweeps
from torchsplit_core.planning.sweep.points import Parameter, SweepPoint, SweepRequest
from torchsplit_core.values import PlanRequest

PARAMETER_WORDS: dict[Parameter, str] = {
    "gpus": "Number of GPUs of a type",
    "demand": "Demand of a model",
    "weight": "Weight of a model",
    "min_throughput": "Minimum of a model",
    "touched_gpus": "Number of GPUs that may change",
    "attainment": "Share of samples held",
}
UNITS: dict[Parameter, str] = {
    "gpus": "", "weight": "", "demand": "req/s", "min_throughput": "req/s", "touched_gpus": "",
    "attainment": "",
}  # fmt: skip
VIEWS = ("Worst-served model", "GPUs used", "Throughput, all models", "Objective")
RESPONSE = "p95 response"
Y_TITLES = {
    "Worst-served model": "worst-served model, × its demand",
    "GPUs used": "GPUs used",
    "Throughput, all models": "requests per second, all models",
    "Objective": "value of the objective",
}


def views(request: PlanRequest) -> tuple[str, ...]:
    """What the curve can show; the objective has a view of its own unless it is the worst-served model."""
    return (*(VIEWS[:3] if bounds_least(request) else VIEWS), RESPONSE)


def response_axis(waits: Mapping[float, WorstResponse]) -> tuple[str, bool]:
    """The title of the axis of response times, and whether it is relative to limits, if any model has one."""
    by_limit = any(worst.limit_ms is not None for worst in waits.values())
    return f"p95 response of the worst model, {'× its limit' if by_limit else 'ms'}", by_limit


def response_figure(waits: Mapping[float, WorstResponse], value: float) -> float | None:
    """The height of a point on that axis."""
    worst = waits.get(value)
    if worst is None:
        return None
    return worst.share if response_axis(waits)[1] else worst.p95_ms


RESPONSE_BASIS = (
    f"p95 responses are simulated at the request's arrivals, Poisson at the demand unless it says otherwise: "
    f"{LOOK_RUNS} runs of {LOOK_REQUESTS:,} requests of all models together, then the models near their limits as "
    "under load. The one nearest to its limit is shown, without limits the slowest; n/a where more arrives than can be "
    "served."
)
"""The basis of a sweep's response times."""


def bounds_least(request: PlanRequest) -> bool:
    """Whether the objective's value is the worst-served model's throughput, and its bound is one of that."""
    return goal_of(request).fair and not has_penalties(request.objective) and not has_tiers(request)


def figure(request: PlanRequest, point: SweepPoint, view: str) -> tuple[float | None, float | None]:
    """A point's figure in a view, and the bound if that figure has one."""
    if view == VIEWS[0]:
        return point.least, point.bound if bounds_least(request) else None
    if view == VIEWS[1]:
        return None if point.gpus_used is None else float(point.gpus_used), None
    if view == VIEWS[2]:
        return point.total_rps, None
    return point.objective, point.bound


def format_value(what: SweepRequest, value: float) -> str:
    """One value in words: 3 × A100-80GB, bert's demand 20 req/s, 2 GPUs touched."""
    if what.parameter == "touched_gpus":
        return f"{counted(int(value), 'GPU')} touched"
    if what.parameter == "attainment":
        return f"{exact(value)} of the samples held"
    if what.parameter == "gpus":
        return f"{value:g} × {what.target}"
    return f"{what.target}'s {_NAMES[what.parameter]} {exact(value, UNITS[what.parameter])}"


_NAMES: dict[Parameter, str] = {
    "gpus": "count",
    "demand": "demand",
    "weight": "weight",
    "min_throughput": "minimum",
}


def axis_title(what: SweepRequest) -> str:
    """The title of the axis of the parameter."""
    if what.parameter == "touched_gpus":
        return "GPUs that may change"
    if what.parameter == "attainment":
        return "share of samples held"
    if what.parameter == "gpus":
        return f"number of {what.target}"
    unit = UNITS[what.parameter]
    return f"{_NAMES[what.parameter]} of {what.target}" + (f", {unit}" if unit else "")


def proof(point: SweepPoint) -> str:
    """How far a point is proven, and the value that its bound is from."""
    if point.status == "infeasible":
        return "Impossible, proven."
    if point.status == "timeout":
        return "Not solved."
    origin = f" (the bound of {point.bound_from:g} holds here)" if point.bound_from is not None else ""
    if point.status == "optimal":
        return "Proven optimal."
    if point.proven:
        return f"No plan is better for the worst-served model; later levels are not proven{origin}."
    if point.gap is None:
        return "Not proven, no bound is known."
    return f"Not proven: at most {percent(point.gap)} from the best{origin}."


def headline(request: PlanRequest, what: SweepRequest, points: Sequence[SweepPoint]) -> str:
    """The sweep in a sentence: the value from which every demand is met, or the range of figures."""
    plans = [point for point in points if point.least is not None]
    if not plans:
        if all(point.status == "infeasible" for point in points):
            return "No plan is possible at any of these values."
        return "No plan was found at any of these values in the time given."
    if what.parameter in ("gpus", "demand") and all(model.weight == 1 for model in request.models):
        return _threshold(request, what, points)
    low, high = min(plans, key=_worst_served), max(plans, key=_worst_served)
    if low.least == high.least:
        return f"The worst-served model gets {short(low.least)} × its demand at every value."
    return (
        f"The worst-served model gets from {short(low.least)} ({format_value(what, low.value)}) to "
        f"{short(high.least)} × its demand ({format_value(what, high.value)})."
    )


def _worst_served(point: SweepPoint) -> float:
    return point.least or 0.0


def _threshold(request: PlanRequest, what: SweepRequest, points: Sequence[SweepPoint]) -> str:
    """The fewest GPUs, or the largest demand, at which the plan meets every demand."""
    rising = what.parameter == "gpus"
    met = [point for point in points if point.least is not None and point.least >= 1 - 1e-6]
    if not met:
        best = max((point for point in points if point.least is not None), key=_worst_served)
        return (
            f"At none of these values does every model get its demand; "
            f"the worst-served one gets up to {short(best.least)} × ({format_value(what, best.value)})."
        )
    edge = met[0] if rising else met[-1]
    at = points.index(edge) + (-1 if rising else 1)
    text = f"Every model gets its demand {'from' if rising else 'up to'} {format_value(what, edge.value)}."
    if not 0 <= at < len(points):
        return text
    beyond = points[at]
    impossible = beyond.status == "infeasible" or (
        bounds_least(request) and beyond.bound is not None and beyond.bound < 1 - 1e-6
    )
    value = format_value(what, beyond.value)
    return f"{text} At {value} that is {'proven impossible' if impossible else 'not found, nor ruled out'}."


def table(
    request: PlanRequest,
    what: SweepRequest,
    points: Sequence[SweepPoint],
    waits: Mapping[float, WorstResponse],
) -> list[dict[str, Any]]:
    """A row for each point with every figure; None is n/a."""
    front = {point.value for point in sweeps.undominated_points(points)}
    head = "GPUs" if what.parameter == "gpus" else axis_title(what)
    rows = []
    for point in points:
        row: dict[str, Any] = {
            head: point.value,
            "proven": _column(point),
            "worst served, ×": point.least,
            "none above, ×": point.bound if bounds_least(request) else None,
            "GPUs used": point.gpus_used,
            "req/s, all": point.total_rps,
            **_response(waits.get(point.value)),
            "on the front": "yes" if point.value in front else "no",
            "note": sweeps.describe_point(point),
        }
        if not bounds_least(request):
            row |= {"objective": point.objective, "its bound": point.bound}
            del row["none above, ×"]
        rows.append(row)
    return rows


def _response(worst: WorstResponse | None) -> dict[str, Any]:
    return {
        "p95 response, ms": worst.p95_ms if worst else None,
        "of": worst.model if worst else None,
        "its limit, ms": worst.limit_ms if worst else None,
    }


def proof_badge(request: PlanRequest, plans: Sequence[SweepPoint]) -> Badge:
    """How many of the plans are proven, and what is proven."""
    proven = sum(point.proven for point in plans)
    if all(point.status == "optimal" for point in plans):
        return Badge("all plans proven optimal" if len(plans) > 1 else "proven optimal", "gray")
    what = "worst served proven best" if bounds_least(request) else "first level proven"
    return Badge(f"{what} at {proven} of {len(plans)}", "gray" if proven == len(plans) else "yellow")


def basis_badge(request: PlanRequest) -> Badge:
    """Whether the profiles behind all plans were measured."""
    estimated = {
        model.name for model in request.models for point in model.allowed_points if point.basis != "measured"
    }
    if not estimated:
        return Badge(all_measured(len(request.models)), "green")
    return Badge(f"{len(estimated)} of {len(request.models)} profiles estimated, in part or all", "yellow")


def _column(point: SweepPoint) -> str:
    """The proof in a word or two."""
    if point.status == "infeasible":
        return "impossible"
    if point.status == "timeout":
        return "no plan found"
    if point.status == "optimal":
        return "proven"
    if point.proven:
        return "first level proven"
    return "no bound" if point.gap is None else f"gap {percent(point.gap)}"
