"""The queues of a run reckoned once more, with the times that its batches took: what is left is not the device's.

A batch takes what the plan says of its size, times what the batch that began nearest in time on its server took over
what the plan says of that one's size. So a batch that the run had as well takes exactly what it took, and one that the
replay makes of another size, or a moment later, the pace of that moment; the measured time of the nearest batch of the
same size could be seconds away, in another phase of a core that changes its speed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from torchsplit_core.simulation import simulate_paced
from torchsplit_core.simulation.station import batch_time
from torchsplit_core.values import Server, SimulationRequest, TraceArrivals

Batch = Sequence[float]
"""When it began (s of the host's clock), its rows, its ms from hand-over to answer."""


def replay_batches(
    sim_request: SimulationRequest, traces: Mapping[str, Sequence[Batch]], begun_s: float
) -> dict[str, list[float]]:
    """ms of each response of every model of the simulation, in the order of arrival, the warm-up among them.

    `courses` are the batches by server id, `begun_s` when the load began on their clock. Models of which a server has
    no batch are left out: nothing says how fast it was.
    """
    responses_ms = {}
    for number, model in enumerate(sim_request.models):
        servers = [server for server in sim_request.servers if server.model == model.name]
        if not all(traces.get(server.id) for server in servers):
            continue
        assert isinstance(model.arrivals, TraceArrivals), "the arrivals that were sent are replayed"
        zero_s = begun_s + model.arrivals.times_s[0]
        rate_traces = {server.id: _ServiceRateTrace(server, traces[server.id], zero_s) for server in servers}
        responses_ms[model.name] = simulate_paced(sim_request, number, rate_traces).tolist()
    return responses_ms


class _ServiceRateTrace:
    """Of a server: measured over planned at an instant, in ms from the model's first arrival."""

    def __init__(self, server: Server, batches: Sequence[Batch], zero_s: float) -> None:
        ordered = sorted(batches, key=lambda batch: batch[0])
        self.begins = [1e3 * (begin - zero_s) for begin, _, _ in ordered]
        self.ratios = [ms / batch_ms(server, int(rows)) for _, rows, ms in ordered]

    def __call__(self, instant: Any) -> float:
        """That of the batch that began nearest."""
        index = bisect_left(self.begins, instant)
        if index == len(self.begins):
            return self.ratios[-1]
        if index and instant - self.begins[index - 1] < self.begins[index] - instant:
            index -= 1
        return self.ratios[index]


def batch_ms(server: Server, rows: int) -> float:
    """ms of a batch as the simulation has it; beyond the largest size, which it never makes, as that."""
    return float(batch_time(server.batch_ms, min(rows, max(server.batch_ms))))
