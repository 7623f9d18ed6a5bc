"""Bytes that must leave their GPU, from where a plan puts the two ends of a tensor.

A server that can choose passes a batch on within its GPU. If the first member does a share f(g) of its work on GPU g
and the second a share s(g), a share Σ_g min(f(g), s(g)) can stay; the rest leaves, the least under any routing that
loads all servers as planned.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchsplit_core.evaluation.mixes import TensorPair
from torchsplit_core.planning.request.colocation_index import members_of
from torchsplit_core.values import Colocation, PlanOutcome, PlanRequest, tenants_on


def leaving_share(plan: PlanOutcome, request: PlanRequest, pair: TensorPair) -> float | None:
    """The share of a pair's tensors that leaves its GPU, 0 to 1; None if one of the two has no instance."""
    first, second = (_shares(plan, request, name) for name in (pair.first, pair.second))
    if not first or not second:
        return None
    return max(0.0, 1.0 - sum(min(share, second.get(gpu, 0.0)) for gpu, share in first.items()))


def _shares(plan: PlanOutcome, request: PlanRequest, name: str) -> Mapping[str, float]:
    """By GPU, the member's share of its throughput; empty if it has none."""
    (member,) = members_of(request.models, Colocation((name,)), "pair")
    model = request.models[member.model]
    variant = None if member.variant is None else model.variants[member.variant]
    stage = None if variant is None or member.stage is None else variant.stages[member.stage]
    by_gpu: dict[str, float] = {}
    for gpu, _, tenant in tenants_on(plan.gpus):
        if tenant.model != model.name or (variant and tenant.variant != variant.name):
            continue
        if stage is None or tenant.stage == stage.name:
            by_gpu[gpu.id] = by_gpu.get(gpu.id, 0.0) + tenant.throughput_rps
    total = sum(by_gpu.values())
    return {gpu: rate / total for gpu, rate in by_gpu.items()} if total else {}
