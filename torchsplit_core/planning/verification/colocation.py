"""Members of a co-location on a GPU, and the bytes of its separation, from names alone.

A name is a model's, or a stage's as `MODEL/STAGE` or `MODEL/VARIANT.STAGE`; a valid request has no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torchsplit_core.values import Colocation, PlannedGpu, PlanRequest, Variant


def members_on_gpu(request: PlanRequest, pair: Colocation, gpu: PlannedGpu) -> set[str]:
    """The names of the co-location's members that have a tenant on the GPU."""
    models = {model.name for model in request.models}
    names: set[str] = set()
    for item in gpu.slices:
        for tenant in item.tenants:
            stages = stage_names(tenant.model, tenant.variant, tenant.stage)
            names |= {tenant.model} | (stages - models)
    return names.intersection(pair.models)


def separation_weight_bytes(request: PlanRequest, pair: Colocation) -> float:
    """Bytes per request on a GPU that separates the co-location: given, or those between two consecutive stages."""
    if pair.bytes_per_request or len(pair.models) != 2:
        return pair.bytes_per_request
    return _bytes_between(request, *pair.models)


def routed_steps(request: PlanRequest, pair: Colocation) -> Iterator[tuple[str, str, float]]:
    """Consecutive members of a routed co-location, and the bytes that a request carries between them."""
    for first, second in pairwise(pair.models):
        yield first, second, pair.bytes_per_request or _bytes_between(request, first, second)


def _bytes_between(request: PlanRequest, first: str, second: str) -> float:
    """Bytes between neighbouring stages; 0 for other members."""
    if {model.name for model in request.models} & {first, second}:
        return 0.0
    for model in request.models:
        for variant in model.variants:
            names = [stage_names(model.name, variant.name, stage.name) for stage in variant.stages]
            for cut, (before, behind) in enumerate(pairwise(names)):
                if (first in before and second in behind) or (second in before and first in behind):
                    return _cut_bytes(variant, cut)
    return 0.0


def stage_names(model: str, variant: str, stage: str) -> set[str]:
    """The two ways to name a stage."""
    return {f"{model}/{stage}", f"{model}/{variant}.{stage}"}


def _cut_bytes(variant: Variant, cut: int) -> float:
    """Bytes that a request adds across a cut; if it adds none, those of a batch."""
    each = dict(enumerate(variant.cut_bytes_per_request)).get(cut, 0.0)
    return each if each > 0 else variant.cut_bytes[cut]
