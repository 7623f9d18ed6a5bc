"""Applies a change of an explanation to the request, so that it can be planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchsplit_core.planning.request.edit import with_more_gpus
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import ChangeEffect, PlanRequest


def apply_effect(request: PlanRequest, change: ChangeEffect) -> PlanRequest | None:
    """The request with the change; None if no single edit of the request makes it."""
    if change.what == "gpu":
        return _change_gpu_count(request, change)
    if change.what in ("min_throughput_rps", "max_latency_ms") and change.model is not None:
        field: dict[str, Any] = {change.what: change.new}
    elif change.what == "cap_at_demand" and change.model is not None:
        field = {"cap_at_demand": False}
    elif change.what in ("max_ttft_ms", "max_tpot_ms"):
        llm = next((model.llm for model in request.models if model.name == change.model), None)
        if llm is None:
            return None
        limit: dict[str, Any] = {change.what: change.new}
        field = {"llm": replace(llm, **limit)}
    else:
        return None
    models = tuple(
        replace(model, **field) if model.name == change.model else model for model in request.models
    )
    return replace(request, models=models)


def _change_gpu_count(request: PlanRequest, change: ChangeEffect) -> PlanRequest | None:
    """One GPU more or fewer in the fleet entry of the named GPU."""
    ids = [gpu.id for gpu in list_gpus(request.gpus)]
    if change.gpu_id not in ids:
        return None
    index, entry_index = ids.index(change.gpu_id), 0
    while index >= request.gpus[entry_index].count:
        index -= request.gpus[entry_index].count
        entry_index += 1
    if (change.new or 0) < (change.old or 0):
        entries, entry = list(request.gpus), request.gpus[entry_index]
        entries[entry_index : entry_index + 1] = (
            [replace(entry, count=entry.count - 1)] if entry.count > 1 else []
        )
        return replace(request, gpus=tuple(entries)) if entries else None
    return with_more_gpus(request, entry_index, 1)
