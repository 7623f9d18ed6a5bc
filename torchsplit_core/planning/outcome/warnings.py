"""Warnings of a plan: unknown memory, unpriced transfers, large batches and limits that the search ignored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import reads_samples
from torchsplit_core.values import PlannedGpu, PlanRequest, Variant, tenants_on
from torchsplit_core.values.units import GB, GIB


def plan_warnings(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> tuple[str, ...]:
    """All warnings of a plan of the request, one sentence each."""
    return (
        *_unknown_memory(gpus),
        *_free_transfers(request, gpus),
        *_large_batches(request, gpus),
        *_response_limits(request),
        *_demand_over_day(request),
    )


def _response_limits(request: PlanRequest) -> Iterator[str]:
    """Warn of response-time limits that the search ignored."""
    names = [model.name for model in request.models if model.max_response_ms is not None]
    if names:
        yield f"{', '.join(names)}: waiting was not counted, so max_response_ms may not hold."


def _demand_over_day(request: PlanRequest) -> Iterator[str]:
    """Warn of demands over the day, of which one plan for `demand_rps` takes no notice."""
    samples = not reads_samples(request)
    names = [
        model.name for model in request.models if model.demand_windows or (samples and model.demand_samples)
    ]
    if names and samples:
        yield f"{', '.join(names)}: planned for demand_rps alone; demand_windows and demand_samples are not used."
    elif names:
        yield f"{', '.join(names)}: planned for demand_samples; demand_windows are not used."


def _unknown_memory(gpus: Sequence[PlannedGpu]) -> Iterator[str]:
    """Warn of models with an instance of unknown memory."""
    names = dict.fromkeys(tenant.model for *_, tenant in tenants_on(gpus) if tenant.memory_gib is None)
    for name in names:
        yield f"{name}: the memory of a point in use is unknown; it is taken to fit, alone on its slice."


def _free_transfers(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Iterator[str]:
    """Warn of cuts in use whose transfers count as free, and of a network speed without a second node."""
    cut = [name for name, variant in _running(request, gpus) if _has_cut_bytes(variant)]
    if cut and request.link_gb_per_s is None:
        yield f"{', '.join(cut)}: transfers between stages count as free. Set the link speed (link_gb_per_s)."
    if request.network_gb_per_s is not None and len({gpu.node for gpu in list_gpus(request.gpus)}) == 1:
        yield "network_gb_per_s counts for nothing: all GPUs of the fleet are in one node (gpus[].node)."


def _large_batches(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Iterator[str]:
    """Warn of cuts whose fixed bytes exceed the memory of a slice before or after them; names the smallest slice."""
    for name, variant in _running(request, gpus):
        for cut, fixed in enumerate(variant.cut_bytes):
            beside = (variant.stages[cut].name, variant.stages[cut + 1].name)
            small = [
                (size, item.profile)
                for gpu, item, t in tenants_on(gpus)
                if (t.model, t.variant) == (name, variant.name)
                and t.stage in beside
                and (size := gpu_type(gpu.type).profile(item.profile).memory_gib) is not None
                and fixed > size * GIB
            ]
            if small:
                size, profile = min(small)
                yield (
                    f"{name}: cut {cut + 1} of {variant.name} carries {fixed / GB:.3g} GB whatever the batch, "
                    f"more than the {size:.3g} GiB of {profile} hold."
                )


def _running(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> list[tuple[str, Variant]]:
    """The served models, each with its variant."""
    used = {(tenant.model, tenant.variant) for *_, tenant in tenants_on(gpus)}
    return [
        (model.name, variant)
        for model in request.models
        for variant in model.variants
        if (model.name, variant.name) in used
    ]


def _has_cut_bytes(variant: Variant) -> bool:
    return any((*variant.cut_bytes, *variant.cut_bytes_per_request))
