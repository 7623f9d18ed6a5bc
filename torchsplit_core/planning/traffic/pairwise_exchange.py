"""Exchanges tenants between equal slices while that lowers the separated bytes.

Tenants serve the same on another slice of the same profile, GPU type and node, so no model's throughput changes.
Members of hard co-locations stay. A local search by first improvement, without a bound.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations, product

from torchsplit_core.planning.outcome.figures import separation_traffic
from torchsplit_core.planning.outcome.resilience import survives_failure
from torchsplit_core.planning.request.colocation_index import colocated_models
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import PlannedGpu, PlannedSlice, PlanRequest

SliceAddress = tuple[int, int]
"""Indices of a GPU and of its slice."""


def exchange_tenants(
    request: PlanRequest, gpus: tuple[PlannedGpu, ...], deadline: float
) -> tuple[PlannedGpu, ...]:
    """The GPUs with tenants exchanged until no exchange helps, or until `deadline` (time.perf_counter)."""
    fewest_bytes, improved = separation_traffic(request, gpus), True
    while improved and fewest_bytes > 0:
        improved = False
        for first, second in _exchangeable_slices(request, gpus):
            if time.perf_counter() > deadline:
                return gpus
            if gpus[first[0]].slices[first[1]].tenants == gpus[second[0]].slices[second[1]].tenants:
                continue
            candidate = _exchange(gpus, first, second)
            bytes_apart = separation_traffic(request, candidate)
            if bytes_apart < fewest_bytes * (1 - 1e-9) and survives_failure(request, candidate):
                gpus, fewest_bytes, improved = candidate, bytes_apart, True
    return gpus


def _exchangeable_slices(
    request: PlanRequest, gpus: tuple[PlannedGpu, ...]
) -> Iterator[tuple[SliceAddress, SliceAddress]]:
    """Pairs of equal slices on two GPUs, both with tenants, so that no GPU becomes unused."""
    nodes = [gpu.node for gpu in list_gpus(request.gpus)]
    bound_models = {
        name
        for colocation in request.colocations
        if colocation.mode == "hard"
        for name in colocated_models(request.models, colocation)
    }
    free = [[s for s, item in enumerate(gpu.slices) if _is_movable(item, bound_models)] for gpu in gpus]
    for (g, first_gpu), (h, second_gpu) in combinations(enumerate(gpus), 2):
        if (first_gpu.type, nodes[g]) != (second_gpu.type, nodes[h]):
            continue
        for s, t in product(free[g], free[h]):
            if first_gpu.slices[s].profile == second_gpu.slices[t].profile:
                yield (g, s), (h, t)


def _is_movable(item: PlannedSlice, bound_models: Collection[str]) -> bool:
    return bool(item.tenants) and all(tenant.model not in bound_models for tenant in item.tenants)


def _exchange(
    gpus: tuple[PlannedGpu, ...], first: SliceAddress, second: SliceAddress
) -> tuple[PlannedGpu, ...]:
    (g, s), (h, t) = first, second
    changed = list(gpus)
    changed[g] = _with_tenants(gpus[g], s, gpus[h].slices[t])
    changed[h] = _with_tenants(gpus[h], t, gpus[g].slices[s])
    return tuple(changed)


def _with_tenants(gpu: PlannedGpu, index: int, other: PlannedSlice) -> PlannedGpu:
    slices = list(gpu.slices)
    slices[index] = replace(slices[index], tenants=other.tenants)
    return replace(gpu, slices=tuple(slices))
