"""A model's requests through its stages, one behind the other: nothing of a later stage acts on an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.clock import Clock, Instants
from torchsplit_core.simulation.own_queues import serve_own
from torchsplit_core.simulation.shared_queue import serve_shared
from torchsplit_core.simulation.station import Batches, Station
from torchsplit_core.values.simulation.request import QueueKind

SERVE: dict[QueueKind, Callable[[Instants, Sequence[Station]], Batches]] = {
    "shared": serve_shared,
    "per_server": serve_own,
}


@dataclass(frozen=True, slots=True)
class Run:
    """One replication of one model: per request in the order of arrival, and the batches of every stage.

    `response_ms` is from arrival to the end of the last stage, `wait_ms` what of it was spent in queues;
    `length_ms` from the first arrival to the last end.
    """

    response_ms: NDArray[np.float64]
    wait_ms: NDArray[np.float64]
    length_ms: float
    stages: tuple[Batches, ...]
    clock: Clock


def run_chain(
    arrivals: Instants,
    stages: Sequence[Sequence[Station]],
    transfers: Sequence[Any],
    queue: QueueKind,
    clock: Clock,
    front: tuple[Instants, float] | None = None,
) -> Run:
    """Requests that arrive at these instants go through the stages; a batch leaves a stage together.

    `front` has the instants at which they leave the front, never falling, and how long it works on each.
    """
    count = len(arrivals)
    who = np.arange(count)
    joined = arrivals
    waited = np.zeros(count, dtype=arrivals.dtype)
    if front is not None:
        joined = front[0]
        waited = np.maximum(joined - arrivals - front[1], 0.0)
    served = []
    left = joined
    for number, stations in enumerate(stages):
        batches = SERVE[queue](joined, stations)
        served.append(batches)
        if batches.order is not None:
            who, joined = who[batches.order], joined[batches.order]
        waited[who] += np.repeat(batches.starts, batches.sizes) - joined
        left = np.repeat(batches.ends, batches.sizes)
        if number < len(transfers):
            # A stable sort: those that arrive together stay in the order in which their batches began.
            joined = left + transfers[number]
            onward = np.argsort(joined, kind="stable")
            who, joined = who[onward], joined[onward]
    response = np.empty(count, dtype=arrivals.dtype)
    response[who] = left - arrivals[who]
    length = left.max() - arrivals[0]
    return Run(clock.ms(response), clock.ms(waited), float(clock.ms(length)), tuple(served), clock)
