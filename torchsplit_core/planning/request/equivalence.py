"""When two requests ask the same: the same models and terms on equal GPUs, whatever these are called, in whatever order
they stand, and however long the search may take."""

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
    """SHA-256 (hex) that equal questions share, asked with this catalogue. Its fleet must be sound (`validate`)."""
    entries: list[FleetEntry] = []
    for gpu in ordered_gpus(request):
        # No price and a price of 1 are the same question.
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
    """The fingerprint of the GPU catalogue: with other layouts there another plan may be best."""
    data = resources.files("torchsplit_core.hardware").joinpath("data", "mig_profiles.json").read_bytes()
    return hashlib.sha256(data).hexdigest()


def first_level_hash(request: PlanRequest) -> str:
    """That of the same request with the first level of its objective alone, which bounds this one's first level."""
    return equivalence_hash(replace(request, objective=first_level_objective(request.objective)))


def ordered_gpus(request: PlanRequest) -> list[FleetGpu]:
    """Its GPUs in an order in which equal fleets are the same but for the ids."""
    return sorted(list_gpus(request.gpus), key=_sort_key)


def _sort_key(gpu: FleetGpu) -> tuple[object, ...]:
    return (gpu.type, gpu.layouts is not None, gpu.layouts or (), gpu.cost, gpu.node or "")
