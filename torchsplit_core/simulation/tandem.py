"""One model's requests through its stages in order; a later stage never affects an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.per_server_queues import serve_per_server_queues
from torchsplit_core.simulation.shared_queue import serve_shared_queue
from torchsplit_core.simulation.station import Batches, Station
from torchsplit_core.simulation.time_base import Instants, TimeBase
from torchsplit_core.values.simulation.request import QueueKind

QUEUE_DISCIPLINES: dict[QueueKind, Callable[[Instants, Sequence[Station]], Batches]] = {
    "shared": serve_shared_queue,
    "per_server": serve_per_server_queues,
}


@dataclass(frozen=True, slots=True)
class ReplicationRun:
    """One replication of one model: figures of each request in order of arrival, and the batches of each stage.

    `response_ms` runs from arrival to the end of the last stage; `wait_ms` is the part of it spent in queues.
    `length_ms` runs from the first arrival to the last end.
    """

    response_ms: NDArray[np.float64]
    wait_ms: NDArray[np.float64]
    length_ms: float
    stages: tuple[Batches, ...]
    time_base: TimeBase


def run_tandem(
    arrivals: Instants,
    stages: Sequence[Sequence[Station]],
    transfers: Sequence[Any],
    queue: QueueKind,
    time_base: TimeBase,
    front: tuple[Instants, float] | None = None,
) -> ReplicationRun:
    """Run requests that arrive at these instants through the stages; a batch leaves a stage together.

    `front`: when each request leaves the front (non-decreasing), and how long the front works on one request.
    """
    count = len(arrivals)
    request_indices = np.arange(count)
    joined = arrivals
    waited = np.zeros(count, dtype=arrivals.dtype)
    if front is not None:
        joined = front[0]
        waited = np.maximum(joined - arrivals - front[1], 0.0)
    served = []
    left = joined
    for number, stations in enumerate(stages):
        batches = QUEUE_DISCIPLINES[queue](joined, stations)
        served.append(batches)
        if batches.order is not None:
            request_indices, joined = request_indices[batches.order], joined[batches.order]
        waited[request_indices] += np.repeat(batches.starts, batches.sizes) - joined
        left = np.repeat(batches.ends, batches.sizes)
        if number < len(transfers):
            # Stable: requests that arrive together stay in the order in which their batches began.
            joined = left + transfers[number]
            arrival_order = np.argsort(joined, kind="stable")
            request_indices, joined = request_indices[arrival_order], joined[arrival_order]
    response = np.empty(count, dtype=arrivals.dtype)
    response[request_indices] = left - arrivals[request_indices]
    length = left.max() - arrivals[0]
    return ReplicationRun(
        time_base.to_ms(response),
        time_base.to_ms(waited),
        float(time_base.to_ms(length)),
        tuple(served),
        time_base,
    )
