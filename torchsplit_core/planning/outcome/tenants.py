"""A point on a slice as the tenant of a plan."""

from __future__ import annotations

from torchsplit_core.values import EnginePoint, Point, Tenant


def tenant_of(model: str, variant: str, stage: str, point: Point, share: float, rate_rps: float) -> Tenant:
    """The tenant with this share of a slice, of a point planned at `rate_rps` by itself; of an engine on several GPUs
    the part of each of them.
    """
    return Tenant(
        model=model,
        variant=variant,
        stage=stage,
        share=share,
        batch_size=point.batch_size,
        processes=point.processes,
        throughput_rps=share * rate_rps / point.tensor_parallel,
        memory_gib=point.memory_gib,
        basis=point.basis,
        low_rps=_part(point.low_rps, point),
        high_rps=_part(point.high_rps, point),
        engine=point.engine if isinstance(point, EnginePoint) else None,
    )


def _part(rate_rps: float | None, point: Point) -> float | None:
    """What one GPU of an engine has of it."""
    return None if rate_rps is None else rate_rps / point.tensor_parallel
