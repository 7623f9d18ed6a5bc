"""The most that a model's servers can carry, whatever the arrivals."""

from __future__ import annotations

import math

from torchsplit_core.simulation.arrivals import offered_rps
from torchsplit_core.simulation.frontend import frontend_capacity_rps
from torchsplit_core.simulation.replication import PreparedModel
from torchsplit_core.simulation.station import batch_time


def capacity_rps(prepared: PreparedModel) -> float:
    """Requests/s of the slowest stage in batches of max_batch, or of the front if that carries less."""
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
    """Whether the offered load is below the capacity; None for a single arrival, which has no rate."""
    offered = offered_rps(prepared.model.arrivals)
    if offered is None:
        return None if prepared.requests == 1 else False
    return offered < capacity_rps(prepared)
