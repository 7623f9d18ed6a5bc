"""Replays the queues of a load test with its measured batch times; a remaining difference is not the device's.

A replayed batch takes the planned time of its size times the ratio of measured to planned time of the batch that began
nearest in time on its server. A batch that also occurred in the run thus takes its measured time; one of another size
or time gets the speed of that moment. The nearest batch of the same size could be seconds away, in another phase of a
core that changes its speed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from torchsplit_core.simulation import simulate_paced
from torchsplit_core.simulation.station import batch_time
from torchsplit_core.values import Server, SimulationRequest, TraceArrivals

Batch = Sequence[float]
"""Start (s of the host's clock), rows, ms from dispatch to result."""


def replay_batches(
    sim_request: SimulationRequest, traces: Mapping[str, Sequence[Batch]], begun_s: float
) -> dict[str, list[float]]:
    """Response times (ms) of every model in the order of arrival, warm-up included.

    `traces` are the batches by server id, `begun_s` is the start of the load on their clock. A model with a server
    that ran no batch is left out.
    """
    responses_ms = {}
    for number, model in enumerate(sim_request.models):
        servers = [server for server in sim_request.batch_servers if server.model == model.name]
        if not all(traces.get(server.id) for server in servers):
            continue
        assert isinstance(model.arrivals, TraceArrivals), "the arrivals that were sent are replayed"
        zero_s = begun_s + model.arrivals.times_s[0]
        rate_traces = {server.id: _ServiceRateTrace(server, traces[server.id], zero_s) for server in servers}
        responses_ms[model.name] = simulate_paced(sim_request, number, rate_traces).tolist()
    return responses_ms


class _ServiceRateTrace:
    """Ratio of measured to planned batch time of a server over time, in ms from the model's first arrival."""

    def __init__(self, server: Server, batches: Sequence[Batch], zero_s: float) -> None:
        ordered = sorted(batches, key=lambda batch: batch[0])
        self.begins = [1e3 * (begin - zero_s) for begin, _, _ in ordered]
        self.ratios = [ms / batch_ms(server, int(rows)) for _, rows, ms in ordered]

    def __call__(self, instant: Any) -> float:
        """The ratio of the batch that began nearest."""
        index = bisect_left(self.begins, instant)
        if index == len(self.begins):
            return self.ratios[-1]
        if index and instant - self.begins[index - 1] < self.begins[index] - instant:
            index -= 1
        return self.ratios[index]


def batch_ms(server: Server, rows: int) -> float:
    """Simulated time (ms) of a batch; sizes above the largest count as the largest."""
    return float(batch_time(server.batch_ms, min(rows, max(server.batch_ms))))
