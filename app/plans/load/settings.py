"""The settings of a plan under load: arrivals, load factor, limits. No streamlit in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torchsplit_core import values, workflow
from torchsplit_core.values import InputFault, PlanModel, PlanOutcome, PlanRequest, SimulationRequest, quoted
from torchsplit_core.values.simulation.request import Arrivals

Kind = Literal["planned", "poisson", "deterministic", "gamma", "bursts", "trace"]
KINDS: Mapping[Kind, str] = {
    "planned": "As the request says",
    "poisson": "Poisson: independent of each other",
    "deterministic": "Evenly spaced",
    "gamma": "Gamma: more or less even than Poisson",
    "bursts": "Bursts: calm and busy times in turn",
    "trace": "A trace: a table of times",
}
"""Kinds of arrivals in words."""
LOADS = tuple(number / 20 for number in range(2, 41))
"""The stops of the slider of the load: 0.1 to 2 times the rates."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """`times` the demand for `busy_s` on average, then for `calm_s` the rate that makes the mean the demand."""

    times: float = 3.0
    busy_s: float = 2.0
    calm_s: float = 8.0

    @property
    def calm_times(self) -> float:
        """The rate between the bursts over the demand. Raises InputFault where no rate keeps the mean."""
        left = (self.busy_s + self.calm_s - self.times * self.busy_s) / self.calm_s
        if left <= 0:
            most = (self.busy_s + self.calm_s) / self.busy_s
            problem = f"have {self.times:g} times the demand, which leaves no requests for the calm"
            remedy = (
                f"With these seconds stay below {most:g} times; or shorten the bursts, or lengthen the calm."
            )
            raise InputFault("bursts", problem, remedy)
        return left


@dataclass(frozen=True, slots=True)
class Trace:
    """Times of arrival by model, those for all models under None, and their file."""

    file: str
    times_s: Mapping[str | None, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Arrivals at the demand of each model, `load` times as many, and the limits of models that have one, ms."""

    kind: Kind = "poisson"
    cv: float = 2.0
    bursts: Bursts = field(default_factory=Bursts)
    trace: Trace | None = None
    load: float = 1.0
    limits_ms: Mapping[str, float] = field(default_factory=dict)


def kinds_of(request: PlanRequest) -> tuple[Kind, ...]:
    """The kinds to choose from; first the arrivals of the request, if it has any."""
    has_arrivals = any(model.arrivals is not None for model in request.models)
    return tuple(kind for kind in KINDS if has_arrivals or kind != "planned")


def request_limits(request: PlanRequest) -> dict[str, float]:
    """The limits of all models of a request that have one, ms."""
    return {model.name: limit for model in request.models if (limit := model.response_limit_ms) is not None}


def limits_of_service(request: PlanRequest, settings: LoadSettings) -> frozenset[str]:
    """The models whose limit is that of the service time, since nobody has limited their response."""
    return frozenset(
        model.name
        for model in request.models
        if model.max_response_ms is None and settings.limits_ms.get(model.name) == model.max_latency_ms
    )


def arrivals(settings: LoadSettings, model: PlanModel) -> Arrivals:
    """A model's arrivals at a load of 1. Raises InputFault for a trace without it, and for impossible bursts."""
    rate = model.demand_rps
    if settings.kind == "planned":
        return model.expected_arrivals
    if settings.kind == "deterministic":
        return values.DeterministicArrivals(rate)
    if settings.kind == "gamma":
        return values.GammaArrivals(rate, settings.cv)
    if settings.kind == "bursts":
        calm = values.RateState(settings.bursts.calm_times * rate, settings.bursts.calm_s)
        return values.MmppArrivals(
            (calm, values.RateState(settings.bursts.times * rate, settings.bursts.busy_s))
        )
    if settings.kind == "trace" and settings.trace is not None:
        times = settings.trace.times_s.get(model.name, settings.trace.times_s.get(None))
        if times is None:
            problem = f"has no arrivals of model {quoted(model.name)}"
            raise InputFault(settings.trace.file, problem, "Add its rows, or leave out the column of models.")
        return values.TraceArrivals(times)
    return values.PoissonArrivals(rate)


def build_simulation(plan: PlanOutcome, request: PlanRequest, settings: LoadSettings) -> SimulationRequest:
    """The simulation of a plan. Raises InputFault where the plan is of other models or has no slices."""
    made = workflow.simulation_request(plan, request, lambda model: arrivals(settings, model))
    models = tuple(replace(model, slo_ms=settings.limits_ms.get(model.name)) for model in made.models)
    return workflow.under_load(replace(made, models=models), settings.load)


def with_same_arrivals(
    first: SimulationRequest, second: SimulationRequest
) -> tuple[SimulationRequest, SimulationRequest]:
    """Two simulations of the models that both serve, in the order of `first`, with its arrivals and limits.

    A model's place decides its draws, so both get the same requests at the same instants. Raises InputFault
    where no model is in both.
    """
    others = {model.name: model for model in second.models}
    shared = tuple(model for model in first.models if model.name in others)
    if not shared:
        problem = f"serves {', '.join(others)}, and none of the models of this one"
        raise InputFault("the scenario beside", problem, "Choose another scenario.")
    moved = [replace(others[model.name], arrivals=model.arrivals, slo_ms=model.slo_ms) for model in shared]
    return _restrict(first, shared), _restrict(second, tuple(moved))


def _restrict(request: SimulationRequest, models: tuple[values.SimulatedModel, ...]) -> SimulationRequest:
    known = {model.name for model in models}
    servers = tuple(server for server in request.servers if server.model in known)
    return replace(request, models=models, servers=servers)
