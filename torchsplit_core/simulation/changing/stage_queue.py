"""One first-in, first-out queue whose servers come and go; it is advanced from instant to instant and keeps its state.

The rule is that of `shared_queue`: the oldest request starts at the first instant at which a free server either has
max_batch requests waiting or has let the oldest wait for max_wait; if several may start then, the first in the list
does. A server takes batches from `open_ms` up to `close_ms`; one begun before that ends.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.simulation.station import Station, draw_factors
from torchsplit_core.values import Service

DRAWS = 4096
"""Factors of batch times that are drawn at a time, since nobody knows how many batches there will be."""


class DrawnFactors:
    """The factor on the mean time of the first, second, … batch, drawn as it is asked for."""

    def __init__(self, service: Service, rng: np.random.Generator) -> None:
        self.service, self.rng = service, rng
        self.factors: list[float] = []

    def __getitem__(self, batch: int, /) -> float:
        while batch >= len(self.factors):
            self.factors += draw_factors(self.service, DRAWS, self.rng) or [1.0] * DRAWS
        return self.factors[batch]


@dataclass(frozen=True, slots=True)
class OpenStation:
    """Equal servers that take batches from one instant up to another, ms."""

    station: Station
    open_ms: float = -math.inf
    close_ms: float = math.inf


@dataclass(frozen=True, slots=True)
class ServedRequests:
    """Requests in the order in which they were taken, when each one's answer is there, and the ms that servers worked.

    Of engines also when the first token came, and the time of each further one (0 where there is none).
    """

    requests: list[int]
    ends_ms: NDArray[np.float64]
    busy_ms: float
    first_ms: NDArray[np.float64] | None = None
    tpot_ms: NDArray[np.float64] | None = None


NOTHING_SERVED = ServedRequests([], np.empty(0), 0.0)


class _ServerKind:
    """The servers of one max_batch and max_wait: those free by number, others by when they are free or open."""

    __slots__ = ("busy", "close", "idle", "most", "wait")

    def __init__(self, most: int, wait: float, close: list[float]) -> None:
        self.most, self.wait, self.close = most, wait, close
        self.idle: list[int] = []
        self.busy: list[tuple[float, int]] = []

    def start(self, due: float, before: float) -> float:
        """The first instant from `due` on at which one of them may begin; `before`: the last batch of the queue."""
        earliest = due if due > before else before
        while self.idle:
            if self.close[self.idle[0]] > earliest:
                return earliest
            heappop(self.idle)
        while self.busy:
            free, number = self.busy[0]
            instant = free if free > earliest else earliest
            if self.close[number] > instant:
                return instant
            heappop(self.busy)
        return math.inf

    def take(self, instant: float) -> int:
        """The first server that is free then; one is."""
        while self.busy and self.busy[0][0] <= instant:
            heappush(self.idle, heappop(self.busy)[1])
        while self.close[self.idle[0]] <= instant:
            heappop(self.idle)
        return heappop(self.idle)

    def first(self, instant: float) -> int:
        """The number of the server that `take` would give."""
        number = self.take(instant)
        heappush(self.idle, number)
        return number


class StageQueue:
    """A queue and its servers; requests have numbers."""

    def __init__(self, stations: Sequence[OpenStation]) -> None:
        self._stations = [item.station for item in stations for _ in range(item.station.count)]
        close = [item.close_ms for item in stations for _ in range(item.station.count)]
        opened = [item.open_ms for item in stations for _ in range(item.station.count)]
        kinds: dict[tuple[int, float], _ServerKind] = {}
        for number, station in enumerate(self._stations):
            key = (station.max_batch, float(station.max_wait))
            kind = kinds.setdefault(key, _ServerKind(*key, close))
            kind.busy.append((opened[number], number))
        for kind in kinds.values():
            heapify(kind.busy)
        self._kinds = tuple(kinds.values())
        self._joined: list[float] = []
        self._requests: list[int] = []
        self._first = self._batches = 0
        self._before = -math.inf

    @property
    def waiting(self) -> int:
        """Requests that have joined and not begun."""
        return len(self._joined) - self._first

    def join(self, times_ms: Sequence[float], requests: Sequence[int]) -> None:
        """Requests join at these instants: never falling, and none before those that have joined."""
        self._joined += times_ms
        self._requests += requests

    def take_waiting(self) -> list[int]:
        """All requests that wait; they leave the queue."""
        left = self._requests[self._first :]
        self._first = len(self._joined)
        return left

    def advance(self, until_ms: float) -> ServedRequests:
        """The requests whose batch begins before an instant. All that join before it have joined."""
        times, kinds, count = self._joined, self._kinds, len(self._joined)
        first, before, begun, busy = self._first, self._before, self._first, 0.0
        ends: list[float] = []
        sizes: list[int] = []
        alone = kinds[0] if len(kinds) == 1 else None
        while first < count:
            kind = alone
            if kind is not None:
                start = kind.start(_due(times, first, kind), before)
            else:
                starts = [(kind.start(_due(times, first, kind), before), kind) for kind in kinds]
                start = min((instant for instant, _ in starts), default=math.inf)
            if start >= until_ms:
                break
            if kind is None:
                ready = [item for instant, item in starts if instant == start]
                kind = ready[0] if len(ready) == 1 else min(ready, key=lambda item: item.first(start))
            number = kind.take(start)
            behind = bisect_right(times, start, first, min(first + kind.most, count))
            time = self._stations[number].service_time(behind - first, self._batches, start)
            heappush(kind.busy, (start + time, number))
            ends.append(start + time)
            sizes.append(behind - first)
            self._batches += 1
            busy += time
            first, before = behind, start
        self._first, self._before = first, before
        if not ends:
            return NOTHING_SERVED
        return ServedRequests(self._requests[begun:first], np.repeat(ends, sizes), busy)


def _due(times: Sequence[float], first: int, kind: _ServerKind) -> float:
    """When the oldest request may begin on a free server of this kind."""
    due = times[first] + kind.wait
    last = first + kind.most - 1
    return min(due, times[last]) if last < len(times) else due
