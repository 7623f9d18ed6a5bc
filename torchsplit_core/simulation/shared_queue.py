"""One queue for all servers of a stage, first in first out: a loop over batches, without a list of events.

The oldest request starts at the first instant at which a free server has max_batch waiting or has let the
oldest wait for max_wait; of the servers that may start then, the first in the list. Everything of that instant
is known from the arrivals and the instants at which servers become free, so nothing lies between two starts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from torchsplit_core.simulation.clock import Instants
from torchsplit_core.simulation.station import Batches, Station


def serve_shared(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    """The batches of requests that join one queue at these instants, which never fall."""
    limits = {(one.max_batch, one.max_wait) for one in stations}
    if len(limits) > 1:
        return _several_kinds(arrivals, stations)
    if len(stations) == 1 and stations[0].max_batch == 1 and stations[0].factors is None:
        return _one_by_one(arrivals, stations[0])
    if sum(one.count for one in stations) == 1:
        return _one_server(arrivals, stations[0])
    return _one_kind(arrivals, stations)


def _batches(starts: list[Any], ends: list[Any], sizes: list[int], entries: Any, like: Instants) -> Batches:
    return Batches(
        np.array(starts, dtype=like.dtype),
        np.array(ends, dtype=like.dtype),
        np.array(sizes, dtype=np.int64),
        np.asarray(entries, dtype=np.int64),
    )


def _one_by_one(arrivals: Instants, servers: Station) -> Batches:
    """Equal servers without batches, each request the same time: of c, request k follows request k - c.

    Lindley's recursion, start(k) = max(arrival(k), start(k - c) + time), is a running maximum of arrival(k) - k/c
    times, for each k modulo c.
    """
    time = servers.durations[1]
    starts = arrivals.copy()
    for first in range(servers.count if servers.count < len(arrivals) else 0):
        own = arrivals[first :: servers.count]
        before = np.arange(len(own)) * time
        # What is added back may lie a rounding below the arrival that was taken from.
        starts[first :: servers.count] = np.maximum(np.maximum.accumulate(own - before) + before, own)
    sizes = np.ones(len(arrivals), dtype=np.int64)
    return Batches(starts, starts + time, sizes, np.full(len(arrivals), servers.entry))


def _one_server(arrivals: Instants, server: Station) -> Batches:
    # Comparisons instead of min() and max(), whose calls cost a third of the loop.
    times: list[Any] = arrivals.tolist()
    count, most, wait = len(times), server.max_batch, server.max_wait
    durations, factors = server.durations, server.factors
    starts: list[Any] = []
    ends: list[Any] = []
    sizes: list[int] = []
    first = 0
    free = times[0]
    while first < count:
        start = times[first] + wait
        last = first + most - 1
        if last >= count:
            last = count - 1
        elif times[last] < start:
            start = times[last]
        if start < free:
            start = free
        behind = last + 1 if times[last] <= start else bisect_right(times, start, first, last)
        size = behind - first
        free = start + (durations[size] if factors is None else durations[size] * factors[len(sizes)])
        starts.append(start)
        ends.append(free)
        sizes.append(size)
        first = behind
    return _batches(starts, ends, sizes, np.full(len(sizes), server.entry), arrivals)


def _one_kind(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    """Several servers of equal max_batch and max_wait: whichever is free takes the same at the same instant."""
    times: list[Any] = arrivals.tolist()
    count, most, wait = len(times), stations[0].max_batch, stations[0].max_wait
    owner = [station for station in stations for _ in range(station.count)]
    idle = list(range(len(owner)))
    busy: list[tuple[Any, int]] = []
    starts: list[Any] = []
    ends: list[Any] = []
    sizes: list[int] = []
    entries: list[int] = []
    first = 0
    before = times[0]
    while first < count:
        start = times[first] + wait
        last = first + most - 1
        if last >= count:
            last = count - 1
        elif times[last] < start:
            start = times[last]
        if idle:
            # Those that became free at the last start are among the idle: nothing starts before it.
            if start < before:
                start = before
        elif busy[0][0] > start:
            start = busy[0][0]
        before = start
        while busy and busy[0][0] <= start:
            heappush(idle, heappop(busy)[1])
        number = heappop(idle)
        behind = last + 1 if times[last] <= start else bisect_right(times, start, first, last)
        size = behind - first
        server = owner[number]
        mean = server.durations[size]
        end = start + (mean if server.factors is None else mean * server.factors[len(sizes)])
        heappush(busy, (end, number))
        starts.append(start)
        ends.append(end)
        sizes.append(size)
        entries.append(server.entry)
        first = behind
    return _batches(starts, ends, sizes, entries, arrivals)


class _Kind:
    """The servers of one max_batch and max_wait: those free by their number, the others by their end."""

    def __init__(self, most: int, wait: Any) -> None:
        self.most, self.wait = most, wait
        self.idle: list[int] = []
        self.busy: list[tuple[Any, int]] = []

    def start(self, times: Sequence[Any], first: int, before: Any) -> Any:
        """The first instant from the start before on at which one of them may take the oldest request."""
        start = times[first] + self.wait
        last = first + self.most - 1
        if last < len(times):
            start = min(start, times[last])
        return max(start, before if self.idle else self.busy[0][0])

    def free_until(self, instant: Any) -> None:
        """Those whose batch has ended by then are free."""
        while self.busy and self.busy[0][0] <= instant:
            heappush(self.idle, heappop(self.busy)[1])


def _several_kinds(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    times: list[Any] = arrivals.tolist()
    owner = [station for station in stations for _ in range(station.count)]
    kinds: dict[tuple[int, Any], _Kind] = {}
    for number, server in enumerate(owner):
        kind = kinds.setdefault((server.max_batch, server.max_wait), _Kind(server.max_batch, server.max_wait))
        kind.idle.append(number)
    for kind in kinds.values():
        heapify(kind.idle)
    starts: list[Any] = []
    ends: list[Any] = []
    sizes: list[int] = []
    entries: list[int] = []
    first = 0
    start = times[0]
    while first < len(times):
        able = [(kind.start(times, first, start), kind) for kind in kinds.values()]
        start = min(instant for instant, _ in able)
        willing = [kind for instant, kind in able if instant == start]
        for kind in willing:
            kind.free_until(start)
        chosen = min(willing, key=lambda kind: kind.idle[0])
        number = heappop(chosen.idle)
        server = owner[number]
        behind = bisect_right(times, start, first, min(first + chosen.most, len(times)))
        end = start + server.time(behind - first, len(sizes))
        heappush(chosen.busy, (end, number))
        starts.append(start)
        ends.append(end)
        sizes.append(behind - first)
        entries.append(server.entry)
        first = behind
    return _batches(starts, ends, sizes, entries, arrivals)
