"""Tenants change places between equal slices while that lowers the bytes apart.

A slice's tenants serve on another slice of that profile, GPU type and node just as before, so no model gets more or
less; only who stands beside whom changes. Members of hard co-locations stay where they are. First improvements are
taken until none is left: it proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import combinations, product

from torchsplit_core.planning.outcome.figures import apart_bytes
from torchsplit_core.planning.outcome.losses import survives
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.ties import models_of
from torchsplit_core.values import PlannedGpu, PlannedSlice, PlanRequest

Place = tuple[int, int]
"""A GPU and one of its slices, by their places."""


def exchanged(request: PlanRequest, gpus: tuple[PlannedGpu, ...], deadline: float) -> tuple[PlannedGpu, ...]:
    """The GPUs with tenants exchanged until no exchange helps, or until `deadline` (time.perf_counter)."""
    least, improved = apart_bytes(request, gpus), True
    while improved and least > 0:
        improved = False
        for first, second in _pairs(request, gpus):
            if time.perf_counter() > deadline:
                return gpus
            if gpus[first[0]].slices[first[1]].tenants == gpus[second[0]].slices[second[1]].tenants:
                continue
            other = _exchange(gpus, first, second)
            bytes_apart = apart_bytes(request, other)
            if bytes_apart < least * (1 - 1e-9) and survives(request, other):
                gpus, least, improved = other, bytes_apart, True
    return gpus


def _pairs(request: PlanRequest, gpus: tuple[PlannedGpu, ...]) -> Iterator[tuple[Place, Place]]:
    """Equal slices of two GPUs, both with tenants, so that no GPU falls out of use."""
    nodes = [gpu.node for gpu in list_gpus(request.gpus)]
    held = {
        name for one in request.colocations if one.mode == "hard" for name in models_of(request.models, one)
    }
    free = [[s for s, item in enumerate(gpu.slices) if _free(item, held)] for gpu in gpus]
    for (g, one), (h, other) in combinations(enumerate(gpus), 2):
        if (one.type, nodes[g]) != (other.type, nodes[h]):
            continue
        for s, t in product(free[g], free[h]):
            if one.slices[s].profile == other.slices[t].profile:
                yield (g, s), (h, t)


def _free(item: PlannedSlice, held: Collection[str]) -> bool:
    return bool(item.tenants) and all(tenant.model not in held for tenant in item.tenants)


def _exchange(gpus: tuple[PlannedGpu, ...], first: Place, second: Place) -> tuple[PlannedGpu, ...]:
    (g, s), (h, t) = first, second
    changed = list(gpus)
    changed[g] = _with(gpus[g], s, gpus[h].slices[t])
    changed[h] = _with(gpus[h], t, gpus[g].slices[s])
    return tuple(changed)


def _with(gpu: PlannedGpu, place: int, other: PlannedSlice) -> PlannedGpu:
    slices = list(gpu.slices)
    slices[place] = replace(slices[place], tenants=other.tenants)
    return replace(gpu, slices=tuple(slices))
