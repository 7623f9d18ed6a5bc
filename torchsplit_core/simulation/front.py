"""The front: one process that every request passes before its model's first stage, one at a time, in order of arrival.

It couples models, which share nothing else: what of them arrives while a model's own requests do is drawn with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.arrivals import offered_rps, times_ms
from torchsplit_core.values import SimulationRequest, TraceArrivals
from torchsplit_core.values.simulation.request import Arrivals

MOST_PASSED = 2_000_000
"""Requests of all models through the front in one replication of one: a rare model beside a busy one has fewer of its
own, so that a replication stays below a second."""

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Passing:
    """A model that passes the front: its place in the request, its arrivals, ms of the front for each of them."""

    number: int
    arrivals: Arrivals
    ms: float

    @property
    def busy(self) -> float:
        """The share of the front's time that it takes; 0 for arrivals without a rate."""
        return (offered_rps(self.arrivals) or 0.0) * self.ms / 1e3


def passing(request: SimulationRequest) -> tuple[Passing, ...]:
    """All models of a request that pass the front."""
    return tuple(
        Passing(number, model.arrivals, model.front_ms)
        for number, model in enumerate(request.models)
        if model.front_ms > 0
    )


def front_capacity_rps(all_: Sequence[Passing], number: int) -> float:
    """What the front carries of the model of this number, when all rates grow alike; infinite where it passes none."""
    own = next((one for one in all_ if one.number == number), None)
    if own is None:
        return math.inf
    rate = offered_rps(own.arrivals)
    return 1e3 / own.ms if rate is None else rate / sum(one.busy for one in all_)


def most_requests(all_: Sequence[Passing], number: int, wanted: int) -> int:
    """So many of the wanted requests that no more than MOST_PASSED pass the front meanwhile; those of a trace all."""
    own = next((one for one in all_ if one.number == number), None)
    rate = None if own is None else offered_rps(own.arrivals)
    if own is None or not rate or isinstance(own.arrivals, TraceArrivals):
        return wanted
    share = rate / sum(offered_rps(one.arrivals) or 0.0 for one in all_)
    return max(1, min(wanted, int(MOST_PASSED * share)))


def behind_front(
    all_: Sequence[Passing], number: int, own_ms: Times, seed: tuple[int, int], factor: float
) -> Times:
    """When each request of a model leaves the front, in ms on the axis of its own arrivals, in their order.

    `seed` is the request's and the replication; the others arrive as in their own runs. Of those that come at one
    instant the models' order counts.
    """
    own = next((one for one in all_ if one.number == number), None)
    if own is None:
        return own_ms
    zero = _first_ms(own.arrivals, factor)
    until = zero + float(own_ms[-1])
    arrivals = [own_ms if one is own else _until(one, until, seed, factor) - zero for one in all_]
    times = np.concatenate(arrivals)
    spans = np.repeat([one.ms for one in all_], [len(one) for one in arrivals])
    order = np.argsort(times, kind="stable")
    # Lindley: a request leaves when the last idle instant before it is as long ago as all work since then.
    work = np.cumsum(spans[order])
    left = work + np.maximum.accumulate(times[order] - (work - spans[order]))
    place = sum(len(one) for one in arrivals[: all_.index(own)])
    found = np.empty(len(times))
    found[order] = left
    return found[place : place + len(own_ms)]


def _first_ms(arrivals: Arrivals, factor: float) -> float:
    """Where a model's axis begins: at the first arrival of a trace, else with the simulation."""
    return arrivals.times_s[0] * 1e3 / factor if isinstance(arrivals, TraceArrivals) else 0.0


def _until(one: Passing, until_ms: float, seed: tuple[int, int], factor: float) -> Times:
    """Another model's arrivals up to an instant."""
    begin = _first_ms(one.arrivals, factor)
    rate = (offered_rps(one.arrivals) or 0.0) * factor
    count = int(rate * max(0.0, until_ms - begin) / 1e3) + 1
    while True:
        count += 20 + 8 * math.isqrt(count)
        rng = np.random.default_rng([seed[0], one.number, seed[1], 0])
        times = begin + times_ms(one.arrivals, count, rng, factor)
        if isinstance(one.arrivals, TraceArrivals) or times[-1] >= until_ms:
            return times[times <= until_ms]
        count *= 2
