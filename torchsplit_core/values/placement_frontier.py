"""Throughput against latency: the pipelines of one placement request that no other beats in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchsplit_core.values.placement import PlacedLink, PlacedSegment
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One pipeline of the curve; throughput in the units of the request, the rest as in PlacementOutcome.

    latency_bound_s: no pipeline of at least this throughput has a lower latency. proven: its own equals it.
    """

    throughput: float
    latency_s: float
    latency_bound_s: float
    proven: bool
    segments: tuple[PlacedSegment, ...]
    links: tuple[PlacedLink, ...]
    sequences_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class PlacementFrontier:
    """The curve of one pipeline, by rising throughput and so by rising latency.

    status: optimal, every point is proven; feasible, some are not, or a higher throughput is not excluded; infeasible
    is proven; timeout has no points. complete: all are proven and none is missing between them; else the curve may be
    coarse. throughput_bound: no pipeline has more; None where there is none, or where it is not known.
    """

    status: SolveStatus
    points: tuple[FrontierPoint, ...] = ()
    throughput_bound: float | None = None
    complete: bool = False
    message: str = ""
    units: Literal["tokens_per_s", "seed_literal"] = "tokens_per_s"
    basis: Basis = "estimated"
    statistics: Mapping[str, str | int | float] = field(default_factory=dict)
