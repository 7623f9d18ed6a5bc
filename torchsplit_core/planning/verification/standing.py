"""Who of a co-location stands on a GPU, and what its separation weighs, from names alone.

A name is a model's, or a stage's as `MODEL/STAGE` or `MODEL/VARIANT.STAGE`; a valid request has no other.
"""

from __future__ import annotations

from itertools import pairwise

from torchsplit_core.values import Colocation, PlannedGpu, PlanRequest, Variant


def standing(request: PlanRequest, pair: Colocation, gpu: PlannedGpu) -> set[str]:
    """The names of the co-location's members that have a tenant on the GPU."""
    models = {model.name for model in request.models}
    here: set[str] = set()
    for item in gpu.slices:
        for tenant in item.tenants:
            stages = _names(tenant.model, tenant.variant, tenant.stage)
            here |= {tenant.model} | (stages - models)
    return here.intersection(pair.models)


def torn_bytes(request: PlanRequest, pair: Colocation) -> float:
    """Bytes per request of one GPU that tears the co-location apart: given, or those between two stages in a row."""
    models = {model.name for model in request.models}
    if pair.bytes_per_request or len(pair.models) != 2 or not models.isdisjoint(pair.models):
        return pair.bytes_per_request
    for model in request.models:
        for variant in model.variants:
            names = [_names(model.name, variant.name, stage.name) for stage in variant.stages]
            for cut, (before, behind) in enumerate(pairwise(names)):
                first, second = pair.models
                if (first in before and second in behind) or (second in before and first in behind):
                    return _handed_on(variant, cut)
    return 0.0


def _names(model: str, variant: str, stage: str) -> set[str]:
    return {f"{model}/{stage}", f"{model}/{variant}.{stage}"}


def _handed_on(variant: Variant, cut: int) -> float:
    """What a request adds across a cut; where none adds anything, what a batch carries."""
    each = dict(enumerate(variant.cut_bytes_per_request)).get(cut, 0.0)
    return each if each > 0 else variant.cut_bytes[cut]
