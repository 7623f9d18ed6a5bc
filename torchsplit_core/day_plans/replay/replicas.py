"""What people run without a planner: replicas of each model on its best slice, packed first fit, as many as its load
asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.latency_slo.simulation_input import batch_times, engine_server, points_up_to
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.values import (
    WHOLE_GPU,
    EnginePoint,
    EngineServer,
    PlanModel,
    PlanRequest,
    Point,
    Server,
    Stage,
    point_type,
)
from torchsplit_core.values.day.replay import ThresholdRule

ROUNDING = 1e-9

Place = tuple[str, str, int]
"""Where a replica stands: GPU type, profile, and how many GPUs it takes whole."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on a slice of a type of GPU; `per_gpu_rps`: of a GPU full of them, over its price where it has one."""

    model: str
    gpu_type: str
    point: Point
    variant: str
    stage: Stage
    per_gpu_rps: float

    @property
    def rate_rps(self) -> float:
        """What one carries."""
        return self.point.throughput_rps

    @property
    def place(self) -> Place:
        return self.gpu_type, self.point.profile, self.point.tensor_parallel

    def server(self) -> Server | EngineServer | None:
        """It as a server of a simulation; None for an engine of which only measured points are known."""
        name = f"{self.model}/{self.point.profile or 'whole'}"
        if not isinstance(self.point, EnginePoint):
            times = batch_times(points_up_to(self.stage, self.point))
            batch, count = self.point.batch_size, self.point.processes
            return Server(name, self.model, self.stage.name, batch, times, count)
        engine = self.point.engine
        if engine is None or engine.step is None or engine.kv_blocks is None:
            return None
        return engine_server(name, self.model, self.stage.name, engine)


def best_replica(request: PlanRequest, model: PlanModel) -> Replica | None:
    """The slice on which a GPU full of the model serves most requests/s, per price where GPUs have one.

    Only whole models within their max_latency_ms. None where the fleet has no such slice.
    """
    kinds = {(gpu.type, gpu.layouts, gpu.either): gpu for gpu in list_gpus(request.gpus)}
    best: Replica | None = None
    for gpu in kinds.values():
        for variant in model.variants:
            if len(variant.stages) > 1 or not variant.allowed:
                continue
            for point in variant.stages[0].points:
                limit = model.max_latency_ms
                if point.gpu_type != point_type(gpu.type) or (limit is not None and point.latency_ms > limit):
                    continue
                count = _slices_of(gpu, point)
                rate = count * point.throughput_rps / (gpu.price or 1.0)
                if rate > (best.per_gpu_rps if best else 0.0):
                    best = Replica(model.name, gpu.type, point, variant.name, variant.stages[0], rate)
    return best


def _slices_of(gpu: FleetGpu, point: Point) -> float:
    """How many slices of the point's profile a GPU of the fleet has, at most; a part of one of a group of GPUs."""
    if point.profile == WHOLE_GPU:
        return 1 / point.tensor_parallel if gpu.can_be_whole else 0.0
    if gpu.whole:
        return 0.0
    if gpu.layouts is not None:
        return max(layout.count(point.profile) for layout in gpu.layouts)
    kind = gpu_type(gpu.type)
    if point.profile not in {profile.name for profile in kind.profiles}:
        return 0.0
    count = kind.memory_slices // kind.profile(point.profile).memory_slices
    while count and place_layout(kind, (point.profile,) * count) is None:
        count -= 1
    return count


def replicas_by_load(
    loads_rps: Sequence[float | None], rate_rps: float, rule: ThresholdRule, step_s: float
) -> list[int]:
    """How many replicas the rule asks for by the load of each step; where it is not known as many as before.

    It begins with what the first load asks for.
    """
    first = next((load for load in loads_rps if load is not None), 0.0)
    current = _replicas_at_target(first, rate_rps, rule)
    recent: list[tuple[float, int]] = []
    counts = []
    for number, load in enumerate(loads_rps):
        if load is not None:
            ratio = load / (current * rate_rps * rule.target)
            within = abs(ratio - 1) <= rule.tolerance + ROUNDING
            decided = current if within else _replicas_at_target(load, rate_rps, rule)
            now = number * step_s
            recent = [(then, count) for then, count in recent if then > now - rule.stabilisation_s]
            recent.append((now, decided))
            current = max(decided, min(current, max(count for _, count in recent)))
        counts.append(current)
    return counts


def _replicas_at_target(load_rps: float, rate_rps: float, rule: ThresholdRule) -> int:
    return max(1, math.ceil(load_rps / (rule.target * rate_rps) - ROUNDING))


class FirstFit:
    """Packs replicas onto as many GPUs as they need, the largest slices first; layouts are remembered."""

    def __init__(self) -> None:
        self._fitting: dict[tuple[str, tuple[str, ...]], bool] = {}

    def gpus(self, counts: Sequence[tuple[Place, int]]) -> int:
        """GPUs in use by so many replicas of each place."""
        return sum(1 for _ in self._packed(counts))

    def _packed(self, counts: Sequence[tuple[Place, int]]) -> Iterator[tuple[str, ...]]:
        slices: dict[str, list[str]] = {}
        for (kind, profile, gpus), count in counts:
            if profile == WHOLE_GPU:
                yield from ((WHOLE_GPU,) for _ in range(count * gpus))
            else:
                slices.setdefault(kind, []).extend([profile] * count)
        for kind, profiles in slices.items():
            yield from self._first_fit(kind, profiles)

    def _first_fit(self, kind: str, profiles: Sequence[str]) -> list[tuple[str, ...]]:
        gpu = gpu_type(kind)
        gpus: list[tuple[str, ...]] = []
        for profile in sorted(profiles, key=lambda name: -gpu.profile(name).memory_slices):
            for number, slices in enumerate(gpus):
                if self._fits(kind, (*slices, profile)):
                    gpus[number] = (*slices, profile)
                    break
            else:
                gpus.append((profile,))
        return gpus

    def _fits(self, kind: str, profiles: tuple[str, ...]) -> bool:
        key = (kind, tuple(sorted(profiles)))
        if key not in self._fitting:
            self._fitting[key] = place_layout(gpu_type(kind), key[1]) is not None
        return self._fitting[key]
