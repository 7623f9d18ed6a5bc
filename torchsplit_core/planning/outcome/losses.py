"""What the loss of each GPU would cost.

Its instances are gone and nothing else changes: the others keep their shares and batches, and a variant keeps the
link that it was planned with, also where what is left of it stands on one node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.planning.outcome.figures import running_models
from torchsplit_core.planning.problem.transfers import behind_link, link_between
from torchsplit_core.planning.problem.usable import planned_rps
from torchsplit_core.planning.request.objective import must_survive
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import PlannedGpu, PlanRequest


@dataclass(frozen=True, slots=True)
class ModelLoss:
    """A model that loses throughput: what it had, what is left, and what it is owed (`least_rps` None: no minimum)."""

    name: str
    before_rps: float
    left_rps: float
    least_rps: float | None
    demand_rps: float

    @property
    def below_least_rps(self) -> float:
        """Requests/s that its minimum then lacks; 0 where it is kept."""
        return _short(self.least_rps or 0.0, self.left_rps)

    @property
    def below_demand_rps(self) -> float:
        """Requests/s that its demand then lacks; 0 where it is met."""
        return _short(self.demand_rps, self.left_rps)


@dataclass(frozen=True, slots=True)
class GpuLoss:
    """A GPU in use, and the models that would miss their minimum or demand without it."""

    gpu: str
    models: tuple[ModelLoss, ...]

    @property
    def breaks(self) -> int:
        """How many minima it would break."""
        return sum(model.below_least_rps > 0 for model in self.models)

    @property
    def share(self) -> float:
        """The largest part of a model's minimum, else of its demand, that would be lacking."""
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


def losses(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[GpuLoss, ...]:
    """For every GPU in use what its loss would cost, in the order of the plan.

    A model is named where it loses something and then has less than its minimum or its demand.
    """
    standing = _Standing.of(request, gpus)
    found = []
    for gpu in (one.id for one in gpus if one.used):
        hit = []
        for number in standing.on(gpu):
            spec, had, has = request.models[number], standing.before[number], standing.left(number, gpu)
            if has < had * (1 - TOLERANCE):
                hit.append(ModelLoss(spec.name, had, has, spec.min_throughput_rps, spec.demand_rps))
        missing = tuple(one for one in hit if one.below_least_rps > 0 or one.below_demand_rps > 0)
        found.append(GpuLoss(gpu, missing))
    return tuple(found)


def worst_loss(found: Sequence[GpuLoss]) -> GpuLoss | None:
    """The loss that breaks most minima, then takes the largest part of one; None where none costs anything."""
    hurting = [loss for loss in found if loss.models]
    return max(hurting, key=lambda loss: (loss.breaks, loss.share), default=None)


def survives(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> bool:
    """Whether the plan is what `objective.survives` asks for."""
    if not must_survive(request):
        return True
    return all(
        has >= (spec.min_throughput_rps or 0.0) * (1 - TOLERANCE)
        for spec, has in zip(request.models, least_rates(request, gpus), strict=True)
    )


def least_rates(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[float, ...]:
    """The requests/s of every model when it loses the GPU that it can spare least."""
    standing = _Standing.of(request, gpus)
    least = list(standing.before)
    for gpu in gpus:
        for number in standing.on(gpu.id):
            least[number] = min(least[number], standing.left(number, gpu.id))
    return tuple(least)


@dataclass(frozen=True, slots=True)
class _Stage:
    """Requests/s of a stage: all of them, and what stands on each GPU."""

    total: float
    by_gpu: Mapping[str | None, float]

    def without(self, gpu: str) -> float:
        """What is left; exactly 0 where nothing stands elsewhere."""
        if gpu not in self.by_gpu:
            return self.total
        return self.total - self.by_gpu[gpu] if len(self.by_gpu) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class _Standing:
    """For every model its stages and what it gets of them, and the models that stand on each GPU."""

    stages: Sequence[Sequence[_Stage]]
    before: Sequence[float]
    by_gpu: Mapping[str | None, Sequence[int]]

    @classmethod
    def of(cls, request: PlanRequest, gpus: Sequence[PlannedGpu]) -> _Standing:
        stages = _stages(request, gpus)
        by_gpu: dict[str | None, list[int]] = {}
        for number, mine in enumerate(stages):
            for gpu in dict.fromkeys(gpu for stage in mine for gpu in stage.by_gpu):
                by_gpu.setdefault(gpu, []).append(number)
        return cls(stages, [min((stage.total for stage in mine), default=0.0) for mine in stages], by_gpu)

    def on(self, gpu: str) -> Sequence[int]:
        """The models with an instance there, in the order of the request."""
        return self.by_gpu.get(gpu, ())

    def left(self, model: int, gpu: str) -> float:
        return min((stage.without(gpu) for stage in self.stages[model]), default=0.0)


def _stages(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> list[list[_Stage]]:
    """For every model the stages of the variant that it runs."""
    found: list[list[_Stage]] = []
    for running in running_models(request, gpus):
        stages: list[_Stage] = []
        variant = running.variant
        link = link_between(request, {one.node for stage in running.stages for one in stage})
        for number, stage in enumerate(running.stages):
            assert variant is not None
            by_gpu: dict[str | None, float] = {}
            for one in stage:
                full = one.share * planned_rps(request, one.point)
                rate = behind_link(full, variant, number, one.point.batch_size, link)
                by_gpu[one.gpu] = by_gpu.get(one.gpu, 0.0) + rate
            stages.append(_Stage(math.fsum(by_gpu.values()), by_gpu))
        found.append(stages)
    return found


def _short(owed: float, has: float) -> float:
    return 0.0 if has >= owed * (1 - TOLERANCE) else owed - has
