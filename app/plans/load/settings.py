"""What is asked of a plan under load: how requests arrive, how many, within which time. No streamlit in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from torchsplit_core import workflow
from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    InputFault,
    MmppArrivals,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    PoissonArrivals,
    RateState,
    SimulatedModel,
    SimulationRequest,
    TraceArrivals,
    quoted,
)
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
"""Kinds of arrivals as people say them."""
LOADS = tuple(number / 20 for number in range(2, 41))
"""Where the slider of the load stands: 0.1 to 2 times the rates."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """`times` the demand for `busy_s` on average, then so little for `calm_s` that the mean is the demand."""

    times: float = 3.0
    busy_s: float = 2.0
    calm_s: float = 8.0

    @property
    def calm_times(self) -> float:
        """The rate between the bursts over the demand. Raises InputFault where none keeps the mean."""
        left = (self.busy_s + self.calm_s - self.times * self.busy_s) / self.calm_s
        if left <= 0:
            most = (self.busy_s + self.calm_s) / self.busy_s
            raise InputFault(
                "bursts",
                f"have {self.times:g} times the demand, which leaves no requests for the calm",
                f"With these seconds stay below {most:g} times; or shorten the bursts, or lengthen the calm.",
            )
        return left


@dataclass(frozen=True, slots=True)
class Trace:
    """Times of arrival by model, those of all models under None; the file that they came from."""

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


def limit_of(model: PlanModel) -> float | None:
    """The limit that a request has for a model: of the response time where it has one, else of the service time."""
    limit: float | None = getattr(model, "max_response_ms", None)
    return limit if limit is not None else model.max_latency_ms


def kinds_of(request: PlanRequest) -> tuple[Kind, ...]:
    """What can be chosen: arrivals of the request, where it has any, come first."""
    has_arrivals = any(model.arrivals is not None for model in request.models)
    return tuple(kind for kind in KINDS if has_arrivals or kind != "planned")


def request_limits(request: PlanRequest) -> dict[str, float]:
    """The limits of all models of a request that have one, ms."""
    return {model.name: limit for model in request.models if (limit := limit_of(model)) is not None}


def limits_of_service(request: PlanRequest, settings: LoadSettings) -> frozenset[str]:
    """The models held to the limit of their service time, since nobody has limited their response."""
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
        return DeterministicArrivals(rate)
    if settings.kind == "gamma":
        return GammaArrivals(rate, settings.cv)
    if settings.kind == "bursts":
        calm = RateState(settings.bursts.calm_times * rate, settings.bursts.calm_s)
        return MmppArrivals((calm, RateState(settings.bursts.times * rate, settings.bursts.busy_s)))
    if settings.kind == "trace" and settings.trace is not None:
        times = settings.trace.times_s.get(model.name, settings.trace.times_s.get(None))
        if times is None:
            raise InputFault(
                settings.trace.file,
                f"has no arrivals of model {quoted(model.name)}",
                "Add its rows, or leave out the column of models.",
            )
        return TraceArrivals(times)
    return PoissonArrivals(rate)


def build_simulation(plan: PlanOutcome, request: PlanRequest, settings: LoadSettings) -> SimulationRequest:
    """A plan's simulation as asked. Raises InputFault where the plan is of other models or has no slices."""
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
        raise InputFault(
            "the scenario beside",
            f"serves {', '.join(others)}, and none of the models of this one",
            "Choose another scenario.",
        )
    moved = tuple(
        replace(others[model.name], arrivals=model.arrivals, slo_ms=model.slo_ms) for model in shared
    )
    return _restrict(first, shared), _restrict(second, moved)


def _restrict(request: SimulationRequest, models: tuple[SimulatedModel, ...]) -> SimulationRequest:
    known = {model.name for model in models}
    return replace(
        request, models=models, servers=tuple(server for server in request.servers if server.model in known)
    )
