"""The front: one process through which every request passes before its first stage, first come, first served.

Models share only the front, so a replication of one model also draws the other models' arrivals at the front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.arrivals import arrival_times_ms, offered_rps
from torchsplit_core.values import SimulationRequest, TraceArrivals
from torchsplit_core.values.simulation.request import Arrivals

MOST_PASSED = 2_000_000
"""Most requests of all models at the front in one replication, so that it takes less than a second. A rare model
beside a busy one gets fewer requests."""

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FrontendTraffic:
    """A model whose requests pass the front: its index in the request, its arrivals, the front's ms per request."""

    number: int
    arrivals: Arrivals
    ms: float

    @property
    def utilization(self) -> float:
        """The share of the front's time that the model takes; 0 for arrivals without a rate."""
        return (offered_rps(self.arrivals) or 0.0) * self.ms / 1e3


def frontend_traffic(request: SimulationRequest) -> tuple[FrontendTraffic, ...]:
    """The traffic of every model that passes the front."""
    return tuple(
        FrontendTraffic(number, model.arrivals, model.front_ms)
        for number, model in enumerate(request.models)
        if model.front_ms > 0
    )


def frontend_capacity_rps(traffic: Sequence[FrontendTraffic], number: int) -> float:
    """Most requests/s of this model if all rates grow alike; infinite for a model that does not pass the front."""
    model_traffic = next((flow for flow in traffic if flow.number == number), None)
    if model_traffic is None:
        return math.inf
    rate = offered_rps(model_traffic.arrivals)
    return 1e3 / model_traffic.ms if rate is None else rate / sum(flow.utilization for flow in traffic)


def limit_requests(traffic: Sequence[FrontendTraffic], number: int, wanted: int) -> int:
    """`wanted`, or fewer so that at most MOST_PASSED requests pass the front meanwhile; a trace is not shortened."""
    model_traffic = next((flow for flow in traffic if flow.number == number), None)
    rate = None if model_traffic is None else offered_rps(model_traffic.arrivals)
    if model_traffic is None or not rate or isinstance(model_traffic.arrivals, TraceArrivals):
        return wanted
    share = rate / sum(offered_rps(flow.arrivals) or 0.0 for flow in traffic)
    return max(1, min(wanted, int(MOST_PASSED * share)))


def frontend_departures_ms(
    traffic: Sequence[FrontendTraffic],
    number: int,
    model_arrivals_ms: Times,
    seed: tuple[int, int],
    factor: float,
) -> Times:
    """When each request of a model leaves the front, in order of arrival, in ms on the model's own time axis.

    `seed` is the request's seed and the replication; the other models arrive as in their own runs. Simultaneous
    arrivals pass in the order of the models.
    """
    model_traffic = next((flow for flow in traffic if flow.number == number), None)
    if model_traffic is None:
        return model_arrivals_ms
    zero = _first_ms(model_traffic.arrivals, factor)
    until = zero + float(model_arrivals_ms[-1])
    arrivals = [
        model_arrivals_ms if flow is model_traffic else _arrivals_until(flow, until, seed, factor) - zero
        for flow in traffic
    ]
    times = np.concatenate(arrivals)
    spans = np.repeat([flow.ms for flow in traffic], [len(flow) for flow in arrivals])
    order = np.argsort(times, kind="stable")
    # Lindley: departure = the work so far + the largest idle time before any request up to this one.
    work = np.cumsum(spans[order])
    departures = work + np.maximum.accumulate(times[order] - (work - spans[order]))
    place = sum(len(flow_arrivals) for flow_arrivals in arrivals[: traffic.index(model_traffic)])
    departures_ms = np.empty(len(times))
    departures_ms[order] = departures
    return departures_ms[place : place + len(model_arrivals_ms)]


def _first_ms(arrivals: Arrivals, factor: float) -> float:
    """Where a model's time axis begins: at the first arrival of a trace, otherwise at the start of the simulation."""
    return arrivals.times_s[0] * 1e3 / factor if isinstance(arrivals, TraceArrivals) else 0.0


def _arrivals_until(flow: FrontendTraffic, until_ms: float, seed: tuple[int, int], factor: float) -> Times:
    """Another model's arrivals up to an instant."""
    begin = _first_ms(flow.arrivals, factor)
    rate = (offered_rps(flow.arrivals) or 0.0) * factor
    count = int(rate * max(0.0, until_ms - begin) / 1e3) + 1
    while True:
        count += 20 + 8 * math.isqrt(count)
        rng = np.random.default_rng([seed[0], flow.number, seed[1], 0])
        times = begin + arrival_times_ms(flow.arrivals, count, rng, factor)
        if isinstance(flow.arrivals, TraceArrivals) or times[-1] >= until_ms:
            return times[times <= until_ms]
        count *= 2
