"""Throughput against latency: the pipelines of one placement request that no other beats in both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torchsplit_core.values.fields import Added, Count, Facts, NonNegative, Positive, Required
from torchsplit_core.values.placement import PlacedLink, PlacedSegment
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One pipeline of the curve; throughput in the units of the request, the rest as in PlacementOutcome.

    latency_bound_s: no pipeline of at least this throughput has a lower latency. proven: its own equals it.
    """

    throughput: Positive
    latency_s: Positive
    latency_bound_s: NonNegative
    proven: bool
    segments: tuple[PlacedSegment, ...]
    links: tuple[PlacedLink, ...]
    sequences_in_flight: Added[Count | None] = None


@dataclass(frozen=True, slots=True)
class PlacementFrontier:
    """The curve of one pipeline, by rising throughput and so by rising latency.

    status: optimal, every point is proven; feasible, some are not, or a higher throughput is not excluded; infeasible
    is proven; timeout has no points. complete: all are proven and none is missing between them; else the curve may be
    coarse. throughput_bound: no pipeline has more; None where there is none, or where it is not known.
    """

    status: SolveStatus
    points: Required[tuple[FrontierPoint, ...]] = ()
    throughput_bound: Required[NonNegative | None] = None
    complete: Required[bool] = False
    message: str = ""
    units: Literal["tokens_per_s", "seed_literal"] = "tokens_per_s"
    basis: Basis = "estimated"
    statistics: Facts = field(default_factory=dict)
