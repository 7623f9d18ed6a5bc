"""Whether a plan meets its demands, as planned and at the low end of its points' intervals, model by model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torchsplit_core.planning.confidence.next_measurement import (
    MeasurementAdvice,
    most_informative_measurement,
)
from torchsplit_core.planning.outcome.figures import planned_or_unserved
from torchsplit_core.planning.outcome.instances import ModelInstances, model_instances
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
    """What a model should get and what it gets, in requests/s.

    `wanted_rps` is the greater of demand and minimum. `throughput_rps` is by nominal throughputs, also in a plan made
    at the low end; `low_rps` and `high_rps` take every instance at that end of its interval, if it has one.
    """

    name: str
    wanted_rps: float
    throughput_rps: float
    low_rps: float
    high_rps: float

    @property
    def meets(self) -> bool:
        """Whether it gets what is wanted, as planned."""
        return _suffices(self.throughput_rps, self.wanted_rps)

    @property
    def meets_low(self) -> bool:
        """Whether it gets what is wanted even at the low end."""
        return _suffices(self.low_rps, self.wanted_rps)

    @property
    def is_open(self) -> bool:
        """Whether the wanted rate is inside its interval."""
        return not self.meets_low and _suffices(self.high_rps, self.wanted_rps)

    @property
    def share(self) -> float:
        """The share of the wanted rate that it gets, as planned."""
        return self.throughput_rps / self.wanted_rps

    @property
    def low_share(self) -> float:
        """The share of the wanted rate that it gets at the low end."""
        return self.low_rps / self.wanted_rps


@dataclass(frozen=True, slots=True)
class PlanConfidence:
    """Confidence in a plan. `models` are in the order of the request.

    `points` counts those that a plan of the request may use, by basis; `in_use` the different ones in use, and
    `without_interval` those of them without a known interval, which count with their throughput. `next_measurement` is
    None if no model's verdict is open or no measurement would change it. `plan_at` is the end of the intervals that the
    plan was made for.
    """

    models: tuple[ModelConfidence, ...]
    point_counts: Mapping[Basis, int]
    in_use: int
    without_interval: int
    next_measurement: MeasurementAdvice | None
    plan_at: Literal["nominal", "low"]

    @property
    def meets(self) -> bool:
        """Whether every model gets what is wanted, as planned."""
        return all(model.meets for model in self.models)

    @property
    def meets_low(self) -> bool:
        """Whether every model gets what is wanted even at the low end."""
        return all(model.meets_low for model in self.models)

    @property
    def low_end(self) -> Literal["yes", "no", "unknown"]:
        """Whether every model gets what is wanted at the low end; unknown if a point in use has no interval."""
        if not self.meets_low:
            return "no"
        return "unknown" if self.without_interval else "yes"

    @property
    def failing_low(self) -> tuple[ModelConfidence, ...]:
        """The models that get less than wanted at the low end, smallest share first."""
        failing = [model for model in self.models if not model.meets_low]
        return tuple(sorted(failing, key=lambda model: (model.low_share, model.name)))

    @property
    def surest_to_fail(self) -> ModelConfidence:
        """The model with the smallest share of the wanted rate at the low end; ties by name."""
        least = min(model.low_share for model in self.models)
        return min(
            (model for model in self.models if equal(model.low_share, least)), key=lambda model: model.name
        )


def assess_confidence(request: PlanRequest, plan: PlanOutcome) -> PlanConfidence:
    """The confidence in a plan of this request.

    Raises InputFault if it answers another request, has no plan, or uses what the request does not have.
    """
    if plan.request_sha256 != request_hash(request):
        raise InputFault("plan", "answers another request", "Plan this request, then ask again.")
    if plan.status not in ("optimal", "feasible"):
        raise InputFault("plan", f"has no plan: its search ended {plan.status}", "Choose a solved scenario.")
    # Nominal points, whichever end the plan was made for: intervals are around them.
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
    """The greater of demand and minimum."""
    return max(model.demand_rps, model.min_throughput_rps or 0.0)


def _model_confidence(request: PlanRequest, instances: ModelInstances) -> ModelConfidence:
    planned = planned_or_unserved(request, instances)
    low = planned.throughput_rps if planned.low_rps is None else planned.low_rps
    high = planned.throughput_rps if planned.high_rps is None else planned.high_rps
    return ModelConfidence(planned.name, wanted_rps(instances.model), planned.throughput_rps, low, high)


def _count_bases(request: PlanRequest) -> Mapping[Basis, int]:
    """Points on GPU types of the fleet by basis; no plan can use others."""
    fleet = {(point_type(entry.type), is_unpartitioned(entry)) for entry in request.gpus}
    return Counter(
        point.basis
        for model in request.models
        for point in model.allowed_points
        if (point.gpu_type, point.profile == WHOLE_GPU) in fleet
    )


def _suffices(rate: float, wanted: float) -> bool:
    return rate >= wanted or equal(rate, wanted)
