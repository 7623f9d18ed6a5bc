"""Whether a plan meets its demands, as planned and at the low end of the intervals it rests on, model by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.planning.confidence.next_measurement import (
    MeasurementAdvice,
    most_informative_measurement,
)
from torchsplit_core.planning.outcome.figures import ModelInstances, model_instances, planned_or_unserved
from torchsplit_core.planning.request.fleet import is_unpartitioned
from torchsplit_core.planning.request.hash import request_hash
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
class ModelConfidence:
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
        return _suffices(self.throughput_rps, self.wanted_rps)

    @property
    def meets_low(self) -> bool:
        """Whether it has what is wanted even at the low end."""
        return _suffices(self.low_rps, self.wanted_rps)

    @property
    def is_open(self) -> bool:
        """Whether its interval leaves open if it has what is wanted."""
        return not self.meets_low and _suffices(self.high_rps, self.wanted_rps)

    @property
    def share(self) -> float:
        """What of the wanted it has, as planned."""
        return self.throughput_rps / self.wanted_rps

    @property
    def low_share(self) -> float:
        """What of the wanted it has at the low end."""
        return self.low_rps / self.wanted_rps


@dataclass(frozen=True, slots=True)
class PlanConfidence:
    """How sure a plan is. `models` are in the order of the request.

    `points` counts those that a plan of the request may use, by basis; `in_use` the different ones in use, and
    `without_interval` those of them that count as they are because nobody knows their interval. `next_measurement` is
    None where no model's verdict is open, or nothing that could be measured would change it. `plan_at` is the end of
    the intervals that the plan was made for.
    """

    models: tuple[ModelConfidence, ...]
    point_counts: Mapping[Basis, int]
    in_use: int
    without_interval: int
    next_measurement: MeasurementAdvice | None
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
    def failing_low(self) -> tuple[ModelConfidence, ...]:
        """The models that have less than wanted at the low end, the surest to fail first."""
        failing = [model for model in self.models if not model.meets_low]
        return tuple(sorted(failing, key=lambda model: (model.low_share, model.name)))

    @property
    def surest_to_fail(self) -> ModelConfidence:
        """The model with least of the wanted at the low end; the first by name of equal ones."""
        least = min(model.low_share for model in self.models)
        return min(
            (model for model in self.models if equal(model.low_share, least)), key=lambda model: model.name
        )


def assess_confidence(request: PlanRequest, plan: PlanOutcome) -> PlanConfidence:
    """How sure a plan of this request is.

    Raises InputFault where it answers another request, has no plan, or uses what the request does not have.
    """
    if plan.request_sha256 != request_hash(request):
        raise InputFault("plan", "answers another request", "Plan this request, then ask again.")
    if plan.status not in ("optimal", "feasible"):
        raise InputFault("plan", f"has no plan: its search ended {plan.status}", "Choose a solved scenario.")
    # Points as they are, whichever end the plan was made at: the interval lies around them.
    nominal = replace(request, solver=replace(request.solver, plan_at="nominal"))
    by_model = model_instances(nominal, plan.gpus)
    models = tuple(_model_confidence(nominal, model) for model in by_model)
    used = {
        id(instance.point): instance.point
        for served_model in by_model
        for stage in served_model.stages
        for instance in stage
    }
    without_interval = sum(point.low_rps is None and point.high_rps is None for point in used.values())
    still_open = [served_model for served_model, model in zip(by_model, models, strict=True) if model.is_open]
    advice = most_informative_measurement(
        nominal, still_open, {model.name: model.wanted_rps for model in models}
    )
    return PlanConfidence(
        models, _count_bases(request), len(used), without_interval, advice, request.solver.plan_at
    )


def wanted_rps(model: PlanModel) -> float:
    """What the model is to have: its demand, or its minimum where that is more."""
    return max(model.demand_rps, model.min_throughput_rps or 0.0)


def _model_confidence(request: PlanRequest, instances: ModelInstances) -> ModelConfidence:
    planned = planned_or_unserved(request, instances)
    low = planned.throughput_rps if planned.low_rps is None else planned.low_rps
    high = planned.throughput_rps if planned.high_rps is None else planned.high_rps
    return ModelConfidence(planned.name, wanted_rps(instances.model), planned.throughput_rps, low, high)


def _count_bases(request: PlanRequest) -> Mapping[Basis, int]:
    """Of the points on GPU types of the fleet: of others no plan of the request can make use."""
    fleet = {(point_type(entry.type), is_unpartitioned(entry)) for entry in request.gpus}
    return Counter(
        point.basis
        for model in request.models
        for point in model.allowed_points
        if (point.gpu_type, point.profile == WHOLE_GPU) in fleet
    )


def _suffices(rate: float, wanted: float) -> bool:
    return rate >= wanted or equal(rate, wanted)
