"""The tenants that may be set to run on a slice by hand: those of a plan, then every point of its request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.planning.outcome.tenants import tenant_of
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.values import PlanOutcome, PlanRequest, Tenant, point_type, tenants_on


def tenants_for(
    plan: PlanOutcome, request: PlanRequest | None, gpu: str, profile: str
) -> Mapping[str, tuple[Tenant, ...]]:
    """By model the ways to run one instance alone on a slice of that GPU type and profile, each once.

    First what the plan runs on such slices, then the points of the request with the most requests/s first.
    """
    planned = (
        replace(tenant, share=1.0, throughput_rps=tenant.throughput_rps / tenant.share)
        for owner, item, tenant in tenants_on(plan.gpus)
        if (owner.type, item.profile) == (gpu, profile) and tenant.share > 0
    )
    points = () if request is None else _of_points(request, point_type(gpu), profile)
    ways: dict[str, dict[object, Tenant]] = {}
    for tenant in (*planned, *sorted(points, key=lambda tenant: -tenant.throughput_rps)):
        ways.setdefault(tenant.model, {}).setdefault(tenant_key(tenant), tenant)
    return {model: tuple(tenants.values()) for model, tenants in ways.items()}


def _of_points(request: PlanRequest, kind: str, profile: str) -> Iterator[Tenant]:
    for model in request.models:
        for _, variant in model.allowed_variants:
            for stage in variant.stages:
                for point in stage.points:
                    if (point.gpu_type, point.profile, point.tensor_parallel) == (kind, profile, 1):
                        rate_rps = planned_rps(request, point)
                        yield tenant_of(model.name, variant.name, stage.name, point, 1.0, rate_rps)


def with_shares(tenants: tuple[Tenant, ...], shares: tuple[float, ...]) -> tuple[Tenant, ...]:
    """The tenants of one slice with these shares, each with its throughput in proportion."""
    return tuple(
        replace(tenant, share=share, throughput_rps=tenant.throughput_rps * share / tenant.share)
        for tenant, share in zip(tenants, shares, strict=True)
    )
