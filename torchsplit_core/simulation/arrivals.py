"""Arrival times by kind of arrival process; `factor` multiplies every rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.values import (
    DeterministicArrivals,
    GammaArrivals,
    MmppArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from torchsplit_core.values.simulation.request import Arrivals

Times = NDArray[np.float64]


def is_random(arrivals: Arrivals) -> bool:
    """Whether another seed gives other arrival times."""
    return isinstance(arrivals, PoissonArrivals | GammaArrivals | MmppArrivals)


def offered_rps(arrivals: Arrivals) -> float | None:
    """Requests/s; for a trace (n - 1) / (last - first), or None if all its times are equal."""
    if isinstance(arrivals, TraceArrivals):
        times = arrivals.times_s
        length = times[-1] - times[0]
        return (len(times) - 1) / length if length > 0 else None
    if isinstance(arrivals, MmppArrivals):
        cycle = sum(state.mean_s for state in arrivals.states)
        return sum(state.rate_rps * state.mean_s for state in arrivals.states) / cycle
    return arrivals.rate_rps


def request_count(arrivals: Arrivals, requests: int) -> int:
    """How many requests one replication has."""
    return len(arrivals.times_s) if isinstance(arrivals, TraceArrivals) else requests


def arrival_times_ms(
    arrivals: Arrivals, requests: int, rng: np.random.Generator, factor: float = 1.0
) -> Times:
    """Non-decreasing arrival times, ms; a trace counts from its first. Every factor uses the same draws."""
    if isinstance(arrivals, TraceArrivals):
        times = np.asarray(arrivals.times_s, dtype=np.float64)
        return np.asarray((times - times[0]) * 1e3 / factor)
    if isinstance(arrivals, MmppArrivals):
        return _mmpp_times_ms(arrivals, requests, rng, factor)
    between_ms = 1e3 / (arrivals.rate_rps * factor)
    if isinstance(arrivals, DeterministicArrivals):
        return np.asarray(np.arange(1, requests + 1) * between_ms, dtype=np.float64)
    if isinstance(arrivals, GammaArrivals):
        shape = arrivals.cv**-2
        gaps = rng.standard_gamma(shape, requests) / shape
    else:
        gaps = rng.standard_exponential(requests)
    return np.asarray(np.cumsum(gaps) * between_ms)


def _mmpp_times_ms(arrivals: MmppArrivals, requests: int, rng: np.random.Generator, factor: float) -> Times:
    """A Poisson process of rate 1 on the axis of expected arrivals, mapped back to time state by state.

    The first state is drawn by each state's share of time, so the process begins in its steady state.
    """
    expected = np.cumsum(rng.standard_exponential(requests))
    states = arrivals.states
    means = np.array([state.mean_s for state in states]) * 1e3
    rates = np.array([state.rate_rps for state in states]) * factor / 1e3
    first = int(rng.choice(len(states), p=means / means.sum()))
    cycles = max(16, int(expected[-1] / float(means @ rates)) + 1)
    instants, reached = [np.zeros(1)], [np.zeros(1)]
    while reached[-1][-1] <= expected[-1]:
        which = (first + np.arange(min(cycles, 1 << 16) * len(states))) % len(states)
        sojourns_ms = rng.standard_exponential(len(which)) * means[which]
        instants.append(instants[-1][-1] + np.cumsum(sojourns_ms))
        reached.append(reached[-1][-1] + np.cumsum(sojourns_ms * rates[which]))
    return np.asarray(np.interp(expected, np.concatenate(reached), np.concatenate(instants)))
