"""The requests of a day's windows, and that of the one plan that holds through all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torchsplit_core.day_plans.scaled_arrivals import with_demand
from torchsplit_core.planning.request.colocation_index import members_of
from torchsplit_core.planning.request.validate import check_minima, validate
from torchsplit_core.transition import state_of_plan
from torchsplit_core.values import (
    Colocation,
    DemandWindow,
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    quoted,
    suggestion,
)


def check_day_request(request: PlanRequest) -> None:
    """Raise InputFault for a request that cannot be planned over its windows."""
    # The limit of touched GPUs is one between windows: it needs no state to begin with.
    validate(without_touch_limit(request))
    for window in windows_of(request):
        check_minima(request_of_window(request, window.name))


def windows_of(request: PlanRequest) -> tuple[DemandWindow, ...]:
    """The windows in their order, that of the first model. Raises InputFault for a request without windows."""
    windows = request.models[0].demand_windows
    if not windows:
        raise InputFault(
            "models",
            "have no demand_windows, so there is no day to plan",
            "Give each model its demand by window, or plan without --over-windows.",
        )
    return windows


def request_of_window(request: PlanRequest, name: str, before: PlanOutcome | None = None) -> PlanRequest:
    """The request of one window: its demands and minima, arrivals in proportion, and nothing of the day.

    A model without demand in the window is left out, and with it what co-locations say of it. `before`: the plan that
    runs when the window begins, which becomes `current`; None: the request's own state, if it has one.
    Raises InputFault for an unknown window, and for one in which no model has a demand.
    """
    names = [window.name for window in windows_of(request)]
    if name not in names:
        raise InputFault(
            "demand_windows", f"has no window {quoted(name)}", suggestion(name, names, "windows")
        )

    def at_window(model: PlanModel) -> tuple[float, float | None]:
        window = next(item for item in model.demand_windows if item.name == name)
        return _window_figures(model, window, request)

    changed = _with_demands(request, at_window, f"window {name}")
    if before is not None:
        return replace(changed, current=state_of_plan(before))
    return changed if request.current is not None else without_touch_limit(changed)


def static_request(request: PlanRequest) -> PlanRequest:
    """The request of the plan that holds all day: every model's largest demand and its largest minimum.

    What runs now does not limit it. Raises InputFault if no model has any demand.
    """

    def at_most(model: PlanModel) -> tuple[float, float | None]:
        figures = [_window_figures(model, window, request) for window in model.demand_windows]
        minima = [minimum for _, minimum in figures if minimum is not None]
        return max(demand for demand, _ in figures), max(minima, default=None)

    return without_touch_limit(_with_demands(request, at_most, "demand_windows"))


def with_demands_as_minima(request: PlanRequest) -> PlanRequest:
    """The request in which each window's demand is its minimum, where neither it nor its model has one."""

    def filled(model: PlanModel, window: DemandWindow) -> DemandWindow:
        if window.min_throughput_rps or model.min_throughput_rps:
            return window
        return replace(window, min_throughput_rps=window.rate_rps(request.plan_demand_at))

    models = (
        replace(model, demand_windows=tuple(filled(model, window) for window in model.demand_windows))
        for model in request.models
    )
    return replace(request, models=tuple(models))


def with_demands_of(request: PlanRequest, name: str) -> PlanRequest:
    """The request with all its models at their planned demands in a window, 0 included: for what a change loses there,
    not to be planned."""
    models = (
        replace(model, demand_rps=window.rate_rps(request.plan_demand_at))
        for model in request.models
        for window in model.demand_windows
        if window.name == name
    )
    return replace(request, models=tuple(models))


def served_rates(request: PlanRequest, name: str) -> Mapping[str, float]:
    """By model what arrives in a window, in requests/s: the mean where it is known, else the planned demand."""
    return {
        model.name: window.rate_rps("mean")
        for model in request.models
        for window in model.demand_windows
        if window.name == name
    }


def _window_figures(
    model: PlanModel, window: DemandWindow, request: PlanRequest
) -> tuple[float, float | None]:
    """Demand and minimum of a model in a window; without demand there is no minimum either."""
    demand, minimum = window.rate_rps(request.plan_demand_at), window.min_throughput_rps
    if demand == 0 and minimum:
        raise InputFault(
            f"model {model.name}, window {window.name}",
            f"has a demand of 0 and a minimum of {minimum:g} requests/s",
            "Give the window a demand, or leave the minimum out.",
        )
    if demand == 0:
        return 0.0, None
    return demand, model.min_throughput_rps if minimum is None else minimum


def _with_demands(
    request: PlanRequest, figures_of: Callable[[PlanModel], tuple[float, float | None]], where: str
) -> PlanRequest:
    models = []
    for model in request.models:
        demand, minimum = figures_of(model)
        if demand > 0:
            changed = replace(model, min_throughput_rps=minimum, demand_windows=(), demand_samples=())
            models.append(with_demand(changed, demand))
    if not models:
        raise InputFault(
            where, "asks nothing of any model", "Join it to another window, or give a model a demand."
        )
    asked = {model.name for model in models}
    return replace(
        request,
        models=tuple(models),
        colocations=tuple(part for pair in request.colocations for part in _among(pair, request, asked)),
        plan_demand_at="p95",
    )


def _among(pair: Colocation, request: PlanRequest, asked: set[str]) -> Iterator[Colocation]:
    """What the co-location says of these models: of a routed one each stretch in which no member is missing."""
    members = members_of(request.models, pair, "colocations")
    stretches: list[list[str]] = [[]]
    for name, member in zip(pair.models, members, strict=True):
        if request.models[member.model].name in asked:
            stretches[-1].append(name)
        elif pair.mode == "routed":
            stretches.append([])
    return (replace(pair, models=tuple(names)) for names in stretches if len(names) > 1)


def without_touch_limit(request: PlanRequest) -> PlanRequest:
    """The request that lets any number of GPUs change."""
    return replace(request, objective=replace(request.objective, max_touched_gpus=None))
