"""Several pipelines as an outcome."""

from __future__ import annotations

import math

from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.latency import latency_s
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.placement.outcome.pipeline import placed
from torchsplit_core.placement.replicas.pipelines import Pipelines
from torchsplit_core.values import PlacedReplica, PlacementOutcome


def outcome_of(model: SegmentModel, instance: Instance, found: Pipelines) -> PlacementOutcome:
    """The outcome of a search that found at least one pipeline."""
    replicas = []
    for one in found.pipelines:
        segments, links = placed(model, instance, one)
        value = min([part.throughput for part in segments] + [link.throughput for link in links])
        replicas.append(PlacedReplica(value, latency_s(model.request, segments, links), segments, links))
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
    )
