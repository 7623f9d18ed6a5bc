"""Equivalence of requests: the same models and terms on equal GPUs, whatever their names, order and time limit."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from importlib import resources

from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import first_level_objective
from torchsplit_core.values import FleetEntry, PlanRequest, SolverOptions


def equivalence_hash(request: PlanRequest) -> str:
    """SHA-256 (hex) shared by equivalent requests with this catalogue. The fleet must be valid (`validate`)."""
    entries: list[FleetEntry] = []
    for gpu in ordered_gpus(request):
        # No price is equivalent to a price of 1.
        entry = replace(gpu.entry(), cost=gpu.cost)
        if entries and replace(entries[-1], count=1) == entry:
            entries[-1] = replace(entry, count=entries[-1].count + 1)
        else:
            entries.append(entry)
    solver = SolverOptions(plan_at=request.solver.plan_at)
    digest = request_hash(replace(request, gpus=tuple(entries), solver=solver))
    return hashlib.sha256(f"{digest} {_catalogue_hash()}".encode()).hexdigest()


@lru_cache(maxsize=1)
def _catalogue_hash() -> str:
    """Fingerprint of the GPU catalogue: with other layouts another plan may be best."""
    data = resources.files("torchsplit_core.hardware").joinpath("data", "mig_profiles.json").read_bytes()
    return hashlib.sha256(data).hexdigest()


def first_level_hash(request: PlanRequest) -> str:
    """The hash of the same request with only the first level of its objective, which bounds this one's."""
    return equivalence_hash(replace(request, objective=first_level_objective(request.objective)))


def ordered_gpus(request: PlanRequest) -> list[FleetGpu]:
    """The GPUs in canonical order: equal fleets differ only in their ids."""
    return sorted(list_gpus(request.gpus), key=_sort_key)


def _sort_key(gpu: FleetGpu) -> tuple[object, ...]:
    return (gpu.type, gpu.layouts is not None, gpu.layouts or (), gpu.either, gpu.cost, gpu.node or "")
