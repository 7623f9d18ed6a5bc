"""The batch queue of a stage, and the scheduler of tenants that share a slice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

Rows = tuple[memoryview, ...]
"""The bytes of each output for the rows of one request."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Rows of one request that run together. `deaths` counts the workers that died while they ran it.

    `alone`: it gets a batch of its own, because a batch with it failed.
    """

    rows: int
    inputs: tuple[memoryview, ...]
    result: asyncio.Future[Rows]
    enqueued_at: float
    alone: bool = False
    deaths: int = 0

    @property
    def is_done(self) -> bool:
        """Whether it was answered, timed out or cancelled."""
        return self.result.done()


@dataclass(slots=True, eq=False)
class Batch:
    """Requests batched before the first stage; the batch stays together through all stages.

    `payload` is the output of the last stage that ran.
    """

    requests: list[PendingRequest]
    enqueued_at: float
    payload: bytes | memoryview = b""

    @property
    def rows(self) -> int:
        return sum(request.rows for request in self.requests)

    @property
    def is_done(self) -> bool:
        return all(request.is_done for request in self.requests)

    @property
    def alone(self) -> bool:
        """Batches between stages are not joined."""
        return True


@dataclass(slots=True)
class BatchQueue:
    """A first-in, first-out queue. `rows` counts the waiting rows; finished requests count until they are dropped."""

    max_wait_s: float = 0.0
    rows: int = 0
    _entries: deque[PendingRequest | Batch] = field(default_factory=deque)

    def enqueue(self, entry: PendingRequest | Batch, *, first: bool = False) -> None:
        """Add an entry at the end, or at the head if it was taken before."""
        (self._entries.appendleft if first else self._entries.append)(entry)
        self.rows += entry.rows

    def peek(self) -> PendingRequest | Batch | None:
        """The first entry that is not finished; drops those before it."""
        while self._entries and self._entries[0].is_done:
            self.rows -= self._entries.popleft().rows
        return self._entries[0] if self._entries else None

    def is_due(self, now: float, max_batch: int) -> bool:
        """Whether a batch may start: enough rows wait, or the first has waited `max_wait_s`."""
        head = self.peek()
        if head is None:
            return False
        # Timers may fire up to a microsecond early.
        return head.alone or self.rows >= max_batch or now >= head.enqueued_at + self.max_wait_s - 1e-6

    def next_due_at(self) -> float | None:
        """When the first entry will have waited `max_wait_s`; None for an empty queue."""
        head = self.peek()
        return None if head is None else head.enqueued_at + self.max_wait_s

    def take_batch(self, max_batch: int) -> Batch:
        """Take the first entry and those behind it that fit. Call it only when `is_due`."""
        head = self.peek()
        assert head is not None, "a batch is taken where one is due"
        self._entries.popleft()
        self.rows -= head.rows
        if isinstance(head, Batch):
            return head
        batch = Batch([head], head.enqueued_at)
        rows = head.rows
        while not head.alone and (following := self.peek()) is not None:
            if isinstance(following, Batch) or following.alone or rows + following.rows > max_batch:
                break
            self._entries.popleft()
            self.rows -= following.rows
            rows += following.rows
            batch.requests.append(following)
        return batch

    def drain(self) -> list[PendingRequest]:
        """Empty the queue and return its requests."""
        requests = [
            request
            for entry in self._entries
            for request in (entry.requests if isinstance(entry, Batch) else [entry])
        ]
        self._entries.clear()
        self.rows = 0
        return requests


class FairScheduler:
    """Shares a slice between tenants by start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996).

    A tenant's virtual time advances by the time it used the slice, divided by its share; the tenant with the least is
    next. An idle tenant resumes at the current virtual time, so unused time is not saved up. One tenant has the slice
    at a time, so a batch runs as fast as on the slice alone.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.shares = dict(shares)
        self.virtual_times = dict.fromkeys(shares, 0.0)
        self._virtual_now = 0.0
        self._running: dict[str, int] = dict.fromkeys(shares, 0)

    def order(self) -> list[str]:
        """Tenants by virtual time, the least first."""
        return sorted(self.virtual_times, key=lambda name: max(self.virtual_times[name], self._virtual_now))

    def may_start(self, tenant: str, *, others_wait: bool) -> bool:
        """Whether it may start a batch: the slice is free, or the tenant has it and no other waits."""
        if any(count for name, count in self._running.items() if name != tenant):
            return False
        return not (self._running[tenant] and others_wait)

    def start(self, tenant: str) -> None:
        """Record the start of a batch."""
        self.virtual_times[tenant] = max(self.virtual_times[tenant], self._virtual_now)
        self._virtual_now = self.virtual_times[tenant]
        self._running[tenant] += 1

    def end(self, tenant: str, seconds: float) -> None:
        """Record the end of a batch that took so long."""
        self._running[tenant] -= 1
        self.virtual_times[tenant] += seconds / self.shares[tenant]
