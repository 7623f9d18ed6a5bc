"""What a model's servers can carry at most, whatever arrives."""

from __future__ import annotations

import math

from torchsplit_core.simulation.arrivals import offered_rps
from torchsplit_core.simulation.frontend import frontend_capacity_rps
from torchsplit_core.simulation.replication import PreparedModel
from torchsplit_core.simulation.station import batch_time


def capacity_rps(prepared: PreparedModel) -> float:
    """The least over the stages of what their servers serve in batches of max_batch, and of the front, requests/s."""
    return min(
        frontend_capacity_rps(prepared.frontend, prepared.number),
        *(
            math.fsum(
                server.count * server.max_batch / float(batch_time(server.batch_ms, server.max_batch)) * 1e3
                for _, server in stage
            )
            for stage in prepared.stages
        ),
    )


def is_stable(prepared: PreparedModel) -> bool | None:
    """Whether less is offered than can be served; None for a single arrival, which is no rate."""
    offered = offered_rps(prepared.model.arrivals)
    if offered is None:
        return None if prepared.requests == 1 else False
    return offered < capacity_rps(prepared)
