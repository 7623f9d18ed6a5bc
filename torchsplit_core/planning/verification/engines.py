"""Verifies the engines of LLMs: their settings, and the GPUs that one takes together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.verification.claims import REPLAN, false_claim
from torchsplit_core.values import (
    WHOLE_GPU,
    EnginePoint,
    PlanFault,
    PlannedGpu,
    PlannedSlice,
    PlanRequest,
    Point,
    Tenant,
    slice_name,
    tenants_on,
)


def per_gpu(point: Point, rate_rps: float | None) -> float | None:
    """What each GPU of an engine has of its rate, requests/s."""
    if rate_rps is None or not isinstance(point, EnginePoint) or point.engine is None:
        return rate_rps
    return rate_rps / point.engine.tensor_parallel


def engine_faults(gpu: str, item: PlannedSlice, tenant: Tenant, point: Point) -> Iterator[PlanFault]:
    """An engine that is not the one of its point, whatever the group's name."""
    expected = point.engine if isinstance(point, EnginePoint) else None
    claimed = None if tenant.engine is None else replace(tenant.engine, group=None)
    if claimed != expected:
        problem = "claims an engine that its point does not have"
        yield PlanFault(gpu, slice_name(item.profile, item.start), tenant.model, problem, REPLAN)


def group_faults(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> Iterator[PlanFault]:
    """Groups that are not of as many GPUs without MIG as their engine takes, of one type and node, with one tenant.

    Also a GPU that says it is cut by MIG, or not, against its slices.
    """
    fleet = {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    groups: dict[str, list[tuple[PlannedGpu, PlannedSlice, Tenant]]] = {}
    for gpu in gpus:
        is_cut = bool(gpu.slices) and all(item.profile != WHOLE_GPU for item in gpu.slices)
        if gpu.mig != (is_cut if fleet[gpu.id].either and gpu.used else None):
            yield false_claim(f"says mig: {gpu.mig}, and its slices say otherwise", gpu=gpu.id)
    for gpu, item, tenant in tenants_on(gpus):
        named = None if tenant.engine is None else tenant.engine.group
        if gpu.group != named:
            yield false_claim(f"is of group {gpu.group}, and its tenant of {named}", gpu=gpu.id)
        if named is not None:
            groups.setdefault(named, []).append((gpu, item, tenant))
        elif tenant.engine is not None and tenant.engine.tensor_parallel > 1:
            yield false_claim(
                f"has an engine on {tenant.engine.tensor_parallel} GPUs in no group", gpu=gpu.id
            )
    for name, members in groups.items():
        first = members[0][2]
        assert first.engine is not None
        problem = None
        if len(members) != first.engine.tensor_parallel:
            problem = f"has {len(members)} GPUs, and its engine takes {first.engine.tensor_parallel}"
        elif any(tenant != first for _, _, tenant in members):
            problem = "has different tenants on its GPUs"
        elif any(item.profile != WHOLE_GPU or len(gpu.slices) != 1 for gpu, item, _ in members):
            problem = "is on GPUs that MIG cuts"
        elif len({gpu.type for gpu, _, _ in members}) > 1:
            problem = "is on GPUs of several types"
        elif len({fleet[gpu.id].node for gpu, _, _ in members}) > 1:
            problem = "is on GPUs of several nodes"
        if problem is not None:
            yield false_claim(f"group {name} {problem}", first.model)
