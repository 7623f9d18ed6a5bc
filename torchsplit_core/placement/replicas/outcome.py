"""Several pipelines as an outcome."""

from __future__ import annotations

import math

from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.placement.outcome.pipeline import placed
from torchsplit_core.placement.replicas.pipelines import Pipelines
from torchsplit_core.values import PlacedReplica, PlacementOutcome


def outcome_of(model: SegmentModel, instance: Instance, found: Pipelines) -> PlacementOutcome:
    """The outcome of a search that found at least one pipeline."""
    replicas = []
    for segments in found.pipelines:
        one = placed(model, instance, segments)
        replicas.append(
            PlacedReplica(one.throughput, one.latency_s, one.segments, one.links, one.sequences_in_flight)
        )
    under_way = [one.sequences_in_flight for one in replicas if one.sequences_in_flight is not None]
    value = sum(one.throughput for one in replicas)
    bound = value if found.proven else max(value, found.bound)
    known = math.isfinite(bound)
    return PlacementOutcome(
        "optimal" if found.proven else "feasible",
        value,
        bound if known else None,
        (bound - value) / bound if known else None,
        replicas[0].segments,
        replicas[0].links,
        units=model.request.units,
        latency_s=max(one.latency_s for one in replicas),
        replicas=tuple(replicas),
        sequences_in_flight=sum(under_way) if under_way else None,
    )
