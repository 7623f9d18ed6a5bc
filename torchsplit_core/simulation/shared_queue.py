"""One first-in, first-out queue for all servers of a stage, simulated batch by batch without an event list.

The oldest request starts at the first instant at which a free server either has max_batch requests waiting or has
let the oldest wait for max_wait; if several may start then, the first in the list does. That instant depends only
on the arrivals and on when servers become free, so nothing happens between two starts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

import numpy as np

from torchsplit_core.simulation.station import Batches, Station
from torchsplit_core.simulation.time_base import Instants


def serve_shared_queue(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    """The batches of requests that join one queue at these instants (non-decreasing)."""
    if any(station.pace is not None for station in stations):
        return _serve_with_wait(arrivals, stations)
    if len(stations) == 1:
        if stations[0].factors is None and stations[0].max_batch == 1:
            return _serve_unbatched(arrivals, stations[0])
        if stations[0].factors is None and stations[0].count == 1:
            return _serve_single_server(arrivals, stations[0])
        return _serve_equal_servers(arrivals, stations[0])
    if all(station.max_wait == 0 for station in stations):
        return _serve_without_wait(arrivals, stations)
    return _serve_with_wait(arrivals, stations)


def _serve_unbatched(arrivals: Instants, servers: Station) -> Batches:
    """Equal servers without batching and with a constant service time: of c servers, request k follows k - c.

    Lindley's recursion, start(k) = max(arrival(k), start(k - c) + time), is for each k modulo c a running maximum of
    arrival(k) - (k/c) · time.
    """
    time = servers.durations[1]
    starts = arrivals.copy()
    for first in range(servers.count if servers.count < len(arrivals) else 0):
        residue_arrivals = arrivals[first :: servers.count]
        before = np.arange(len(residue_arrivals)) * time
        # Subtracting and adding back may round to just below the arrival.
        starts[first :: servers.count] = np.maximum(
            np.maximum.accumulate(residue_arrivals - before) + before, residue_arrivals
        )
    sizes = np.ones(len(arrivals), dtype=np.int64)
    return Batches(starts, starts + time, sizes, np.full(len(arrivals), servers.entry))


def _padded(arrivals: Instants, most: int) -> list[Any]:
    """The arrivals followed by `most` infinite ones, so that looking ahead needs no bounds check."""
    times: list[Any] = arrivals.tolist()
    times += [math.inf] * most
    return times


def _serve_single_server(arrivals: Instants, server: Station) -> Batches:
    """One server with a constant time per batch size: `_serve_equal_servers` without a heap, in three quarters of
    its time.
    """
    times = _padded(arrivals, server.max_batch)
    count, ahead, wait, durations = len(arrivals), server.max_batch - 1, server.max_wait, server.durations
    starts: list[Any] = []
    behinds: list[int] = []
    started, ended = starts.append, behinds.append
    first = 0
    free = times[0]
    while first < count:
        start = times[first] + wait
        last = first + ahead
        full = times[last]
        if full < start:
            start = full
        if start < free:
            start = free
        if full <= start:
            behind = last + 1
        elif times[first + 1] > start:
            behind = first + 1
        else:
            behind = bisect_right(times, start, first + 1, last)
        free = start + durations[behind - first]
        started(start)
        ended(behind)
        first = behind
    start_times = np.array(starts, dtype=arrivals.dtype)
    sizes = np.diff(np.array(behinds, dtype=np.int64), prepend=0)
    distinct_sizes, which = np.unique(sizes, return_inverse=True)
    time_of = np.array([durations[size] for size in distinct_sizes.tolist()], dtype=arrivals.dtype)
    return Batches(start_times, start_times + time_of[which], sizes, np.full(len(sizes), server.entry))


def _serve_equal_servers(arrivals: Instants, servers: Station) -> Batches:
    """Equal servers: the first free one takes the oldest request; which of several free ones does not matter."""
    times = _padded(arrivals, servers.max_batch)
    count, ahead, wait = len(arrivals), servers.max_batch - 1, servers.max_wait
    durations, factors = servers.durations, servers.factors
    free = [times[0]] * min(servers.count, count)
    starts: list[Any] = []
    ends: list[Any] = []
    behinds: list[int] = []
    first = 0
    # Comparisons instead of min() and max(): those calls would take a third of the loop's time.
    while first < count:
        start = times[first] + wait
        last = first + ahead
        full = times[last]
        if full < start:
            start = full
        if start < free[0]:
            start = free[0]
        if full <= start:
            behind = last + 1
        elif times[first + 1] > start:
            behind = first + 1
        else:
            behind = bisect_right(times, start, first + 1, last)
        time = durations[behind - first]
        end = start + (time if factors is None else time * factors[len(starts)])
        heapreplace(free, end)
        starts.append(start)
        ends.append(end)
        behinds.append(behind)
        first = behind
    return _batches(arrivals, starts, ends, behinds, servers.entry)


def _serve_without_wait(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    """Servers that never wait for a batch to fill: the oldest request starts as soon as any server is free."""
    station_of = [station for station in stations for _ in range(station.count)]
    times = _padded(arrivals, max(server.max_batch for server in stations))
    count = len(arrivals)
    server_limits = [(server.max_batch - 1, server.durations, server.factors) for server in station_of]
    idle = list(range(len(station_of)))
    busy: list[tuple[Any, int]] = []
    starts: list[Any] = []
    ends: list[Any] = []
    behinds: list[int] = []
    numbers: list[int] = []
    first = 0
    before = times[0]
    while first < count:
        start = times[first]
        if idle:
            # Servers that became free at the last start count as idle: nothing starts before it.
            if start < before:
                start = before
        elif busy[0][0] > start:
            start = busy[0][0]
        before = start
        while busy and busy[0][0] <= start:
            heappush(idle, heappop(busy)[1])
        number = heappop(idle)
        ahead, durations, factors = server_limits[number]
        last = first + ahead
        if times[last] <= start:
            behind = last + 1
        elif times[first + 1] > start:
            behind = first + 1
        else:
            behind = bisect_right(times, start, first + 1, last)
        time = durations[behind - first]
        end = start + (time if factors is None else time * factors[len(starts)])
        heappush(busy, (end, number))
        starts.append(start)
        ends.append(end)
        behinds.append(behind)
        numbers.append(number)
        first = behind
    entries = np.array([server.entry for server in station_of])[numbers]
    return _batches(arrivals, starts, ends, behinds, entries)


class _ServerClass:
    """The servers of one max_batch and max_wait: the free ones by index, the busy ones by end of service."""

    def __init__(self, most: int, wait: Any) -> None:
        self.most, self.wait = most, wait
        self.idle: list[int] = []
        self.busy: list[tuple[Any, int]] = []

    def start(self, times: Sequence[Any], first: int, before: Any) -> Any:
        """The first instant, not before the last start, at which one of them may take the oldest request."""
        start = times[first] + self.wait
        last = first + self.most - 1
        if last < len(times):
            start = min(start, times[last])
        return max(start, before if self.idle else self.busy[0][0])

    def free_until(self, instant: Any) -> None:
        """Mark the servers as free whose batches have ended by this instant."""
        while self.busy and self.busy[0][0] <= instant:
            heappush(self.idle, heappop(self.busy)[1])


def _serve_with_wait(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    times: list[Any] = arrivals.tolist()
    station_of = [station for station in stations for _ in range(station.count)]
    kinds: dict[tuple[int, Any], _ServerClass] = {}
    for number, server in enumerate(station_of):
        kind = kinds.setdefault(
            (server.max_batch, server.max_wait), _ServerClass(server.max_batch, server.max_wait)
        )
        kind.idle.append(number)
    for kind in kinds.values():
        heapify(kind.idle)
    starts: list[Any] = []
    ends: list[Any] = []
    behinds: list[int] = []
    entries: list[int] = []
    first = 0
    start = times[0]
    while first < len(times):
        start_times = [(kind.start(times, first, start), kind) for kind in kinds.values()]
        start = min(instant for instant, _ in start_times)
        candidates = [kind for instant, kind in start_times if instant == start]
        for kind in candidates:
            kind.free_until(start)
        chosen = min(candidates, key=lambda kind: kind.idle[0])
        number = heappop(chosen.idle)
        server = station_of[number]
        behind = bisect_right(times, start, first, min(first + chosen.most, len(times)))
        end = start + server.service_time(behind - first, len(starts), start)
        heappush(chosen.busy, (end, number))
        starts.append(start)
        ends.append(end)
        behinds.append(behind)
        entries.append(server.entry)
        first = behind
    return _batches(arrivals, starts, ends, behinds, entries)


def _batches(
    arrivals: Instants, starts: list[Any], ends: list[Any], behinds: list[int], entries: Any
) -> Batches:
    """The batches, given the first request after each; `entries` holds one entry per batch or one for all."""
    sizes = np.diff(np.array(behinds, dtype=np.int64), prepend=0)
    served = np.empty(len(sizes), dtype=np.int64)
    served[:] = entries
    return Batches(
        np.array(starts, dtype=arrivals.dtype), np.array(ends, dtype=arrivals.dtype), sizes, served
    )
