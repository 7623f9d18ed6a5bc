"""Whether a plan meets its demands, as planned and at the low end of the intervals it rests on, model by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.planning.outcome.figures import Running, running_models, served_or_not
from torchsplit_core.planning.request.fleet import left_whole
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sureness.measurement import Measurement, best_measurement
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import (
    WHOLE_GPU,
    InputFault,
    PlanModel,
    PlanOutcome,
    PlanRequest,
    point_type,
)
from torchsplit_core.values.profile import Basis


@dataclass(frozen=True, slots=True)
class ModelSureness:
    """What a model is to have and what it gets, all in requests/s.

    `wanted_rps` is its demand, or its minimum where that is more. `throughput_rps` is that of the points as they
    are, also in a plan made at the low end; `low_rps` and `high_rps` with every instance at that end of its
    interval, one without an interval as it is.
    """

    name: str
    wanted_rps: float
    throughput_rps: float
    low_rps: float
    high_rps: float

    @property
    def meets(self) -> bool:
        """Whether it has what is wanted, as planned."""
        return _enough(self.throughput_rps, self.wanted_rps)

    @property
    def meets_low(self) -> bool:
        """Whether it has what is wanted even at the low end."""
        return _enough(self.low_rps, self.wanted_rps)

    @property
    def open(self) -> bool:
        """Whether its interval leaves open if it has what is wanted."""
        return not self.meets_low and _enough(self.high_rps, self.wanted_rps)

    @property
    def share(self) -> float:
        """What of the wanted it has, as planned."""
        return self.throughput_rps / self.wanted_rps

    @property
    def low_share(self) -> float:
        """What of the wanted it has at the low end."""
        return self.low_rps / self.wanted_rps


@dataclass(frozen=True, slots=True)
class Sureness:
    """How sure a plan is. `models` are in the order of the request.

    `points` counts those that a plan of the request may use, by basis; `in_use` the different ones in use, and
    `without_interval` those of them that count as they are because nobody knows their interval. `next_measurement` is
    None where no model's verdict is open, or nothing that could be measured would change it. `plan_at` is the end of
    the intervals that the plan was made for.
    """

    models: tuple[ModelSureness, ...]
    points: Mapping[Basis, int]
    in_use: int
    without_interval: int
    next_measurement: Measurement | None
    plan_at: Literal["nominal", "low"]

    @property
    def meets(self) -> bool:
        """Whether every model has what is wanted, as planned."""
        return all(model.meets for model in self.models)

    @property
    def meets_low(self) -> bool:
        """Whether every model has what is wanted even at the low end."""
        return all(model.meets_low for model in self.models)

    @property
    def low_end(self) -> Literal["yes", "no", "unknown"]:
        """Whether every model surely has what is wanted at the low end; unknown where figures in use have none."""
        if not self.meets_low:
            return "no"
        return "unknown" if self.without_interval else "yes"

    @property
    def failing_low(self) -> tuple[ModelSureness, ...]:
        """The models that have less than wanted at the low end, the surest to fail first."""
        failing = [model for model in self.models if not model.meets_low]
        return tuple(sorted(failing, key=lambda model: (model.low_share, model.name)))

    @property
    def surest_to_fail(self) -> ModelSureness:
        """The model with least of the wanted at the low end; the first by name of equal ones."""
        least = min(model.low_share for model in self.models)
        return min(
            (model for model in self.models if equal(model.low_share, least)), key=lambda model: model.name
        )


def sureness(request: PlanRequest, plan: PlanOutcome) -> Sureness:
    """How sure a plan of this request is.

    Raises InputFault where it answers another request, has no plan, or uses what the request does not have.
    """
    if plan.request_sha256 != request_hash(request):
        raise InputFault("plan", "answers another request", "Plan this request, then ask again.")
    if plan.status not in ("optimal", "feasible"):
        raise InputFault("plan", f"has no plan: its search ended {plan.status}", "Choose a solved scenario.")
    # Points as they are, whichever end the plan was made at: the interval lies around them.
    nominal = replace(request, solver=replace(request.solver, plan_at="nominal"))
    running = running_models(nominal, plan.gpus)
    models = tuple(_sureness_of(nominal, one) for one in running)
    used = {
        id(instance.point): instance.point for one in running for stage in one.stages for instance in stage
    }
    bare = sum(point.low_rps is None and point.high_rps is None for point in used.values())
    still_open = [one for one, model in zip(running, models, strict=True) if model.open]
    found = best_measurement(nominal, still_open, {model.name: model.wanted_rps for model in models})
    return Sureness(models, _bases(request), len(used), bare, found, request.solver.plan_at)


def wanted_rps(model: PlanModel) -> float:
    """What the model is to have: its demand, or its minimum where that is more."""
    return max(model.demand_rps, model.min_throughput_rps or 0.0)


def _sureness_of(request: PlanRequest, running: Running) -> ModelSureness:
    found = served_or_not(request, running)
    low = found.throughput_rps if found.low_rps is None else found.low_rps
    high = found.throughput_rps if found.high_rps is None else found.high_rps
    return ModelSureness(found.name, wanted_rps(running.model), found.throughput_rps, low, high)


def _bases(request: PlanRequest) -> Mapping[Basis, int]:
    """Of the points on GPU types of the fleet: of others no plan of the request can make use."""
    fleet = {(point_type(entry.type), left_whole(entry)) for entry in request.gpus}
    return Counter(
        point.basis
        for model in request.models
        for _, variant in model.allowed_variants
        for stage in variant.stages
        for point in stage.points
        if (point.gpu_type, point.profile == WHOLE_GPU) in fleet
    )


def _enough(rate: float, wanted: float) -> bool:
    return rate >= wanted or equal(rate, wanted)
