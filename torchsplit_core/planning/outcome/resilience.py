"""The cost of losing each GPU (N-1).

Only the GPU's instances are removed, of an engine on several GPUs the whole: the others keep their shares and batches,
and a variant keeps the link that it was planned with, even if its remaining instances are on one node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.planning.outcome.instances import model_instances
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.planning.problem.transfers import link_between, link_limited_rps
from torchsplit_core.planning.request.objective import (
    goal_of,
    has_penalties,
    objective_levels,
    requires_resilience,
)
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlannedGpu, PlanRequest


@dataclass(frozen=True, slots=True)
class ModelLoss:
    """A model that loses throughput: its rate before and after, its minimum (`least_rps`, None: none) and demand."""

    name: str
    before_rps: float
    left_rps: float
    least_rps: float | None
    demand_rps: float

    @property
    def below_least_rps(self) -> float:
        """Requests/s missing from its minimum; 0 if it is kept."""
        return _shortfall(self.least_rps or 0.0, self.left_rps)

    @property
    def below_demand_rps(self) -> float:
        """Requests/s missing from its demand; 0 if it is met."""
        return _shortfall(self.demand_rps, self.left_rps)


@dataclass(frozen=True, slots=True)
class GpuLoss:
    """A GPU in use, and the models that would miss their minimum or demand without it."""

    gpu: str
    models: tuple[ModelLoss, ...]

    @property
    def broken_minima(self) -> int:
        """Number of models that would miss their minimum."""
        return sum(model.below_least_rps > 0 for model in self.models)

    @property
    def share(self) -> float:
        """The largest part of any model's minimum or demand that would be missing."""
        return max(
            (
                max(
                    model.below_least_rps / model.least_rps if model.least_rps else 0.0,
                    model.below_demand_rps / model.demand_rps,
                )
                for model in self.models
            ),
            default=0.0,
        )


def failure_losses(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[GpuLoss, ...]:
    """The cost of losing each GPU in use, in the order of the plan.

    A model is listed if it loses throughput and then has less than its minimum or demand.
    """
    remaining = _RemainingFleet.build(request, gpus)
    losses_by_gpu = []
    for gpu in (planned.id for planned in gpus if planned.used):
        affected = []
        for number in remaining.models_on(gpu):
            spec, before_rps, left_rps = (
                request.models[number],
                remaining.before[number],
                remaining.remaining_rps(number, gpu),
            )
            if left_rps < before_rps * (1 - TOLERANCE):
                affected.append(
                    ModelLoss(spec.name, before_rps, left_rps, spec.min_throughput_rps, spec.demand_rps)
                )
        missing = tuple(loss for loss in affected if loss.below_least_rps > 0 or loss.below_demand_rps > 0)
        losses_by_gpu.append(GpuLoss(gpu, missing))
    return tuple(losses_by_gpu)


def worst_failure(impacts: Sequence[GpuLoss]) -> GpuLoss | None:
    """The loss that breaks most minima, then that with the largest `share`; None if no loss affects a model."""
    hurting = [loss for loss in impacts if loss.models]
    return max(hurting, key=lambda loss: (loss.broken_minima, loss.share), default=None)


def survives_failure(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> bool:
    """Whether the plan keeps every minimum with any one GPU lost, if `objective.survives` asks for that."""
    if not requires_resilience(request):
        return True
    return all(
        left_rps >= (spec.min_throughput_rps or 0.0) * (1 - TOLERANCE)
        for spec, left_rps in zip(request.models, rates_after_worst_failure(request, gpus), strict=True)
    )


def rates_after_worst_failure(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[float, ...]:
    """For every model the requests/s after the GPU loss that is worst for it."""
    remaining = _RemainingFleet.build(request, gpus)
    least = list(remaining.before)
    for gpu in gpus:
        for number in remaining.models_on(gpu.id):
            least[number] = min(least[number], remaining.remaining_rps(number, gpu.id))
    return tuple(least)


def levels_without_gpus(
    request: PlanRequest, gpus: Sequence[PlannedGpu], indices: Sequence[int]
) -> tuple[float, ...]:
    """The levels of the objective with that of the GPUs `indices` lost that matters least.

    Empty where the loss breaks a minimum, or what remains is not a plan by itself: under penalties, costs or the
    survival of a further loss.
    """
    if goal_of(request).by_cost or has_penalties(request.objective) or requires_resilience(request):
        return ()
    remaining = _RemainingFleet.build(request, gpus)
    best: tuple[float, ...] = ()
    for gpu in (gpus[index].id for index in indices):
        rates = list(remaining.before)
        for number in remaining.models_on(gpu):
            rates[number] = remaining.remaining_rps(number, gpu)
        minima = (spec.min_throughput_rps or 0.0 for spec in request.models)
        if all(rate >= least * (1 - TOLERANCE) for rate, least in zip(rates, minima, strict=True)):
            best = max(best, tuple(objective_levels(request, rates, 0.0, 0.0)))
    return best


@dataclass(frozen=True, slots=True)
class _StageRates:
    """Requests/s of a stage: in total, and by GPU. `lost_with`: the GPUs of the engine that a GPU is part of."""

    total: float
    by_gpu: Mapping[str | None, float]
    lost_with: Mapping[str | None, frozenset[str | None]]

    def without(self, gpu: str) -> float:
        """The rate without this GPU; exactly 0 if no other has an instance that remains."""
        if gpu not in self.by_gpu:
            return self.total
        lost = self.lost_with.get(gpu, frozenset((gpu,)))
        left = [rate for other, rate in self.by_gpu.items() if other not in lost]
        return math.fsum(left) if len(lost) > 1 else self.total - self.by_gpu[gpu] if left else 0.0


@dataclass(frozen=True, slots=True)
class _RemainingFleet:
    """For every model the rates of its stages and its rate before a loss; by GPU the models with an instance there."""

    stages: Sequence[Sequence[_StageRates]]
    before: Sequence[float]
    by_gpu: Mapping[str | None, Sequence[int]]

    @classmethod
    def build(cls, request: PlanRequest, gpus: Sequence[PlannedGpu]) -> _RemainingFleet:
        stages = _stage_rates(request, gpus)
        by_gpu: dict[str | None, list[int]] = {}
        for number, model_stages in enumerate(stages):
            for gpu in dict.fromkeys(gpu for stage in model_stages for gpu in stage.by_gpu):
                by_gpu.setdefault(gpu, []).append(number)
        return cls(
            stages,
            [min((stage.total for stage in model_stages), default=0.0) for model_stages in stages],
            by_gpu,
        )

    def models_on(self, gpu: str) -> Sequence[int]:
        """Indices of the models with an instance on the GPU, in the order of the request."""
        return self.by_gpu.get(gpu, ())

    def remaining_rps(self, model: int, gpu: str) -> float:
        return min((stage.without(gpu) for stage in self.stages[model]), default=0.0)


def _stage_rates(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> list[list[_StageRates]]:
    """For every model the rates of its variant's stages."""
    by_model: list[list[_StageRates]] = []
    groups: dict[str, set[str | None]] = {}
    for gpu in gpus:
        if gpu.group is not None:
            groups.setdefault(gpu.group, set()).add(gpu.id)
    lost_with = {id: frozenset(members) for members in groups.values() for id in members}
    for instances in model_instances(request, gpus):
        stages: list[_StageRates] = []
        variant = instances.variant
        link = link_between(request, {instance.node for stage in instances.stages for instance in stage})
        for number, stage in enumerate(instances.stages):
            assert variant is not None
            by_gpu: dict[str | None, float] = {}
            for instance in stage:
                full = instance.share * planned_rps(request, instance.point) / instance.point.tensor_parallel
                rate = link_limited_rps(full, variant, number, instance.point.batch_size, link)
                by_gpu[instance.gpu] = by_gpu.get(instance.gpu, 0.0) + rate
            stages.append(_StageRates(math.fsum(by_gpu.values()), by_gpu, lost_with))
        by_model.append(stages)
    return by_model


def _shortfall(required: float, rate: float) -> float:
    return 0.0 if rate >= required * (1 - TOLERANCE) else required - rate
