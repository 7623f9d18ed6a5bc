"""Several pipelines as an outcome."""

from __future__ import annotations

import math

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.segments import SegmentModel
from torchsplit_core.placement.outcome.pipeline import build_pipeline
from torchsplit_core.placement.replicas.pipelines import PipelineSetResult
from torchsplit_core.values import PlacedReplica, PlacementOutcome


def replicas_outcome(
    model: SegmentModel, instance: ProblemInstance, result: PipelineSetResult
) -> PlacementOutcome:
    """The outcome of a search that found at least one pipeline."""
    replicas = []
    for segments in result.pipelines:
        pipeline = build_pipeline(model, instance, segments)
        replicas.append(
            PlacedReplica(
                pipeline.throughput,
                pipeline.latency_s,
                pipeline.segments,
                pipeline.links,
                pipeline.sequences_in_flight,
            )
        )
    under_way = [
        replica.sequences_in_flight for replica in replicas if replica.sequences_in_flight is not None
    ]
    value = sum(replica.throughput for replica in replicas)
    bound = value if result.proven else max(value, result.bound)
    known = math.isfinite(bound)
    return PlacementOutcome(
        "optimal" if result.proven else "feasible",
        value,
        bound if known else None,
        (bound - value) / bound if known else None,
        replicas[0].segments,
        replicas[0].links,
        units=model.request.units,
        latency_s=max(replica.latency_s for replica in replicas),
        replicas=tuple(replicas),
        sequences_in_flight=sum(under_way) if under_way else None,
    )
