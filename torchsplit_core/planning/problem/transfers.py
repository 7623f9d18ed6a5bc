"""Bytes across cuts, their duration, and how many requests/s a link allows an instance.

A batch of b takes (cut_bytes[i] + b · cut_bytes_per_request[i]) / link across cut i, with b the largest batch in use at
its two stages. A request's bytes into and out of an instance pass that instance's link, so the instance serves at most
link / bytes requests/s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchsplit_core.values import PlanRequest, Variant
from torchsplit_core.values.units import GB


def link_between(request: PlanRequest, nodes: Collection[str | None]) -> float | None:
    """GB/s between instances of one variant on these nodes; None if transfers take no time."""
    known = [request.link_gb_per_s, request.network_gb_per_s if len(nodes) > 1 else None]
    return min((figure for figure in known if figure is not None), default=None)


def bytes_per_request(variant: Variant, cut: int) -> float:
    """Bytes that each request adds across a cut."""
    return variant.cut_bytes_per_request[cut] if variant.cut_bytes_per_request else 0.0


def transfer_ms(variant: Variant, batches: Sequence[float], link_gb_per_s: float | None) -> float:
    """Milliseconds of a batch across all cuts; `batches` is the largest around each cut."""
    if link_gb_per_s is None:
        return 0.0
    total = 0.0
    for cut, fixed in enumerate(variant.cut_bytes):
        adding = bytes_per_request(variant, cut)
        # An unlimited batch adds nothing if a request adds nothing.
        total += fixed + (batches[cut] * adding if adding else 0.0)
    return total / (link_gb_per_s * GB) * 1e3


def cut_batches(largest: Sequence[int]) -> tuple[int, ...]:
    """The largest batch around every cut, from the largest in each stage."""
    return tuple(map(max, largest, largest[1:]))


def link_rps(variant: Variant, stage: int, batch: int, link_gb_per_s: float | None) -> float:
    """Most requests/s that the link allows an instance of a stage in batches of this size."""
    if link_gb_per_s is None:
        return float("inf")
    carried = _stage_bytes(variant, stage, batch)
    return link_gb_per_s * GB / carried if carried else float("inf")


def link_limited_rps(
    rate_rps: float, variant: Variant, stage: int, batch: int, link_gb_per_s: float | None
) -> float:
    """The requests/s of an instance behind its link, at any share of the slice."""
    return min(rate_rps, link_rps(variant, stage, batch, link_gb_per_s))


def bytes_across_cuts(variant: Variant, batches: Sequence[float]) -> float:
    """Bytes of one request across all cuts; the fixed bytes of a cut are spread over a batch of the stage before it."""
    return sum(
        fixed / batches[cut] + bytes_per_request(variant, cut) for cut, fixed in enumerate(variant.cut_bytes)
    )


def _stage_bytes(variant: Variant, stage: int, batch: int) -> float:
    """Bytes of one request in a batch of this size into and out of a stage."""
    return sum(
        variant.cut_bytes[cut] / batch + bytes_per_request(variant, cut)
        for cut in (stage - 1, stage)
        if 0 <= cut < len(variant.cut_bytes)
    )
