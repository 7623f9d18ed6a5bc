"""Streams that share one or several slices behind a thread that forms their batches, as MLPerf's submitted servers do.

The thread forms the next batch when fewer than `streams` + `ahead` batches are on their way to one of the `slices`,
and gives it to the slice that has had a free place for longest. It then gathers requests until it has `max_batch` or
`wait_ms` is over (if none has arrived, it waits as long again). Servers that go by the age of the oldest request
instead have `window` "oldest". A batch formed ahead of a free stream is closed: later requests wait for the next. A
batch whose work is above `most_work` defers its oldest requests to the end of the run, without a response time.

Streams share the slice by processor sharing with a maximum speed for each. A batch alone on the slice takes its
time, of which `floor_share` of the floor and all of the rest keep the slice busy; if those shares of several batches
add up to more than the slice, all batches slow down alike.

A batch of b takes floor + b · per-request milliseconds (Clipper, NSDI '17, and Nexus, SOSP '19, fit the same line). A
request alone takes both; with a constant backlog so many share the floor that only the second term counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.values import InputFault

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SliceService:
    """A batch takes `floor_ms` + w · `per_request_ms`, where w is the sum of its requests' work (1 each on average)."""

    floor_ms: float
    per_request_ms: float

    def batch_ms(self, work: float) -> float:
        """Time of a batch that has the slice to itself."""
        return self.floor_ms + work * self.per_request_ms

    def beside_neighbours(self, share: float) -> SliceService:
        """The same slice at `share` of its speed (above 0, at most 1), beside loaded neighbours."""
        if not 0 < share <= 1:
            raise InputFault(
                "share",
                f"is {share}, not a share above 0 and at most 1",
                "Give 1 where there are no neighbours.",
            )
        return SliceService(self.floor_ms / share, self.per_request_ms / share)


def service_from_two_points(single_ms: float, offline_rps: float) -> SliceService:
    """The line through the mean time of a lone request and the rate at which many requests complete.

    If a lone request is faster than the rate allows, the rate decides and the floor is 0.
    """
    for name, value in (("single_ms", single_ms), ("offline_rps", offline_rps)):
        if not 0 < value < float("inf"):
            raise InputFault(name, f"is {value}, not a finite number above 0", "Give what was measured.")
    per_request_ms = 1e3 / offline_rps
    return SliceService(max(0.0, single_ms - per_request_ms), per_request_ms)


@dataclass(frozen=True, slots=True)
class Batcher:
    """How batches are formed, and how many may be on their way at once."""

    max_batch: int
    wait_ms: float = 0.0
    streams: int = 1
    ahead: int = 0
    window: Literal["free", "oldest"] = "free"
    floor_share: float = 1.0
    hop_ms: float = 0.0
    most_work: float = math.inf
    slices: int = 1


def serve_by_streams(
    arrivals_ms: Sequence[float] | Times,
    service: SliceService,
    batcher: Batcher,
    work: Sequence[float] | Times | None = None,
) -> Times:
    """Response times, ms, in order of arrival; `arrivals_ms` must not decrease. `work` of each request; None: 1 each.

    Deferred requests have an infinite response time.
    """
    times: list[float] = np.asarray(arrivals_ms, dtype=np.float64).tolist()
    done = (
        np.arange(len(times) + 1, dtype=np.float64)
        if work is None
        else np.concatenate(([0.0], np.cumsum(work)))
    )
    serve = _serve_single_stream if batcher.streams == batcher.slices == 1 else _serve_shared_slices
    ends, formed = serve(times, done.tolist(), service, batcher)
    first = [0, *(after for _, after in formed)]
    response = np.repeat(ends, np.diff(first)) - np.asarray(times)
    for before, (first_served, _) in zip(first, formed, strict=False):
        if first_served > before:
            response[before:first_served] = math.inf
    return np.asarray(response)


def _first_within_work(done: list[float], first: int, after: int, most: float) -> int:
    """The oldest request of a batch that is not deferred; the newest request never is."""
    if done[after] - done[first] <= most:
        return first
    return bisect_left(done, done[after] - most, first, after - 1)


def _next_batch(times: list[float], first: int, ready: float, batcher: Batcher) -> tuple[float, int]:
    """When the batch that begins with request `first` is formed, and the first request after it."""
    last = first + batcher.max_batch - 1
    full = times[last] if last < len(times) else math.inf
    oldest, wait = times[first], batcher.wait_ms
    if not wait:
        due = oldest
    elif batcher.window == "oldest":
        due = oldest + wait
    else:
        due = ready + wait * max(1, math.ceil((oldest - ready) / wait))
    # A sum of windows may, by rounding, end before the request that it was to reach.
    instant = max(ready, oldest, min(full, due))
    return instant, bisect_right(times, instant, first, min(last + 1, len(times)))


def _serve_single_stream(
    times: list[float], done: list[float], service: SliceService, batcher: Batcher
) -> tuple[list[float], list[tuple[int, int]]]:
    """One stream: end of each batch, in order, with its first served request and the first request after it."""
    ends: list[float] = []
    batches: list[tuple[int, int]] = []
    first, formed, before = 0, 0.0, batcher.ahead + 1
    while first < len(times):
        ready = max(formed, ends[-before] + batcher.hop_ms) if len(ends) >= before else formed
        formed, after = _next_batch(times, first, ready, batcher)
        start = max(formed, ends[-1]) if ends else formed
        first_served = _first_within_work(done, first, after, batcher.most_work)
        ends.append(start + service.batch_ms(done[after] - done[first_served]))
        batches.append((first_served, after))
        first = after
    return ends, batches


class _SharedSlice:
    """Batches on their way: the first `streams` share the slice, the others wait in order."""

    def __init__(self, streams: int) -> None:
        self.streams = streams
        self.now = 0.0
        self.left: list[float] = []
        self.busy: list[float] = []
        self.number: list[int] = []
        self.ends: list[float] = []

    def add(self, length: float, busy: float) -> None:
        """Add a batch of `length` ms alone on the slice, of which it keeps the slice busy for the share `busy`."""
        self.left.append(length)
        self.busy.append(busy)
        self.number.append(len(self.ends))
        self.ends.append(math.nan)

    def slowdown(self) -> float:
        """Factor by which sharing lengthens the batches of the streams."""
        return max(1.0, sum(self.busy[: self.streams]))

    def next_end(self) -> float:
        """When the next batch ends."""
        return self.now + min(self.left[: self.streams]) * self.slowdown()

    def advance(self, until: float, most: int) -> None:
        """Advance to the time `until`, or until at most `most` batches are on their way."""
        while len(self.left) > most:
            active = self.left[: self.streams]
            factor, end = self.slowdown(), self.next_end()
            shortest = min(active)
            if end > until:
                worked = (until - self.now) / factor
                self.left[: len(active)] = [left - worked for left in active]
                self.now = until
                break
            self.left[: len(active)] = [left - shortest for left in active]
            self.now = end
            place = active.index(shortest)
            self.ends[self.number.pop(place)] = end
            del self.left[place], self.busy[place]


def _serve_shared_slices(
    times: list[float], done: list[float], service: SliceService, batcher: Batcher
) -> tuple[list[float], list[tuple[int, int]]]:
    """Several streams or slices; returns what `_serve_single_stream` does."""
    slices = [_SharedSlice(batcher.streams) for _ in range(batcher.slices)]
    places = batcher.streams + batcher.ahead
    # When each slice got, or will get, a free place.
    ready = [0.0] * len(slices)
    batches: list[tuple[int, int]] = []
    assignments: list[tuple[int, int]] = []
    first, formed = 0, 0.0
    while first < len(times):
        at = min(range(len(slices)), key=ready.__getitem__)
        chosen = slices[at]
        chosen.advance(math.inf, places - 1)
        formed, after = _next_batch(times, first, max(formed, ready[at]), batcher)
        chosen.advance(formed, 0)
        chosen.now = formed
        first_served = _first_within_work(done, first, after, batcher.most_work)
        work = service.per_request_ms * (done[after] - done[first_served])
        length = service.floor_ms + work
        assignments.append((at, len(chosen.ends)))
        chosen.add(length, (batcher.floor_share * service.floor_ms + work) / length)
        ready[at] = formed if len(chosen.left) < places else chosen.next_end() + batcher.hop_ms
        batches.append((first_served, after))
        first = after
    for shared_slice in slices:
        shared_slice.advance(math.inf, 0)
    return [slices[at].ends[number] for at, number in assignments], batches
