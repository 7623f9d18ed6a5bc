"""A queue for each server of a stage: a request joins the server with the fewest requests waiting or in service.

A heap holds ends of service and time-outs of oldest requests; arrivals come from their list. At the same instant
ends come first, then arrivals, then starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from torchsplit_core.simulation.least_loaded import LeastLoaded
from torchsplit_core.simulation.station import Batches, Station
from torchsplit_core.simulation.time_base import Instants


class _Server:
    """One server, its queue of (instant of joining, request), and its current batch."""

    __slots__ = ("queue", "serving", "station")

    def __init__(self, station: Station) -> None:
        self.station = station
        self.queue: deque[tuple[Any, int]] = deque()
        self.serving = 0

    def earliest_start(self) -> Any:
        """The earliest instant at which it may start if it is free; None if its queue is empty."""
        if not self.queue:
            return None
        if len(self.queue) >= self.station.max_batch:
            return self.queue[0][0]
        return self.queue[0][0] + self.station.max_wait


_END, _TIME_OUT = 0, 1


def serve_per_server_queues(arrivals: Instants, stations: Sequence[Station]) -> Batches:
    """The batches of requests that arrive at these instants (non-decreasing)."""
    times: list[Any] = arrivals.tolist()
    station_of = [station for station in stations for _ in range(station.count)]
    servers: list[_Server] = []
    loads = LeastLoaded(len(station_of))
    events: list[tuple[Any, int, int]] = []
    starts: list[Any] = []
    ends: list[Any] = []
    sizes: list[int] = []
    entries: list[int] = []
    order: list[int] = []
    next_arrival = 0
    while next_arrival < len(times) or events:
        now = events[0][0] if events else times[next_arrival]
        if next_arrival < len(times):
            now = min(now, times[next_arrival])
        changed = set()
        while events and events[0][0] <= now:
            _, kind, number = heappop(events)
            if kind == _END:
                loads.add(number, -servers[number].serving)
                servers[number].serving = 0
            changed.add(number)
        while next_arrival < len(times) and times[next_arrival] <= now:
            number = loads.least()
            if number == len(servers):
                servers.append(_Server(station_of[number]))
            servers[number].queue.append((times[next_arrival], next_arrival))
            loads.add(number, 1)
            changed.add(number)
            next_arrival += 1
        for number in sorted(changed):
            server = servers[number]
            due = None if server.serving else server.earliest_start()
            if due is None:
                continue
            if due > now:
                heappush(events, (due, _TIME_OUT, number))
                continue
            size = min(len(server.queue), server.station.max_batch)
            order.extend(server.queue.popleft()[1] for _ in range(size))
            end = now + server.station.service_time(size, len(sizes), now)
            server.serving = size
            heappush(events, (end, _END, number))
            starts.append(now)
            ends.append(end)
            sizes.append(size)
            entries.append(server.station.entry)
    return Batches(
        np.array(starts, dtype=arrivals.dtype),
        np.array(ends, dtype=arrivals.dtype),
        np.array(sizes, dtype=np.int64),
        np.array(entries, dtype=np.int64),
        np.array(order, dtype=np.int64),
    )
