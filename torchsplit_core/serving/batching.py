"""Requests that wait, and the order in which they are taken: the queue of a stage, the turns on a shared slice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

Rows = tuple[memoryview, ...]
"""The bytes of each output for the rows of one request."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """Rows of one request that are worked on together. `joined` is when it joined the queue it is in.

    `alone`: it has a batch of its own, since a batch with it failed. `lost` counts the workers that died with it.
    """

    rows: int
    inputs: tuple[memoryview, ...]
    result: asyncio.Future[Rows]
    enqueued_at: float
    alone: bool = False
    deaths: int = 0

    @property
    def is_done(self) -> bool:
        """Whether nobody waits for it any more: answered, too late, or its client went away."""
        return self.result.done()


@dataclass(slots=True, eq=False)
class Batch:
    """Items that were put together before the first stage and stay so through the row; `payload` is what the last
    stage that ran gave."""

    requests: list[PendingRequest]
    enqueued_at: float
    payload: bytes | memoryview = b""

    @property
    def rows(self) -> int:
        """Of all its items."""
        return sum(request.rows for request in self.requests)

    @property
    def is_done(self) -> bool:
        """Whether nobody waits for any of it."""
        return all(request.is_done for request in self.requests)

    @property
    def alone(self) -> bool:
        """Two batches that another stage has worked on are not joined."""
        return True


@dataclass(slots=True)
class BatchQueue:
    """First in first out. `rows` are those that wait, gone ones among them until they are passed."""

    max_wait_s: float = 0.0
    rows: int = 0
    _entries: deque[PendingRequest | Batch] = field(default_factory=deque)

    def enqueue(self, entry: PendingRequest | Batch, *, first: bool = False) -> None:
        """At the end, or before all others where it was taken once already."""
        (self._entries.appendleft if first else self._entries.append)(entry)
        self.rows += entry.rows

    def peek(self) -> PendingRequest | Batch | None:
        """The first that somebody waits for; those before it are dropped."""
        while self._entries and self._entries[0].is_done:
            self.rows -= self._entries.popleft().rows
        return self._entries[0] if self._entries else None

    def is_due(self, now: float, max_batch: int) -> bool:
        """Whether a batch may start: enough rows wait, or the first has waited long enough."""
        head = self.peek()
        if head is None:
            return False
        # A timer may wake a little early: a millionth of a second is no waiting.
        return head.alone or self.rows >= max_batch or now >= head.enqueued_at + self.max_wait_s - 1e-6

    def next_due_at(self) -> float | None:
        """When the first will have waited long enough; None where nothing waits."""
        head = self.peek()
        return None if head is None else head.enqueued_at + self.max_wait_s

    def take_batch(self, max_batch: int) -> Batch:
        """The next batch: the first entry, and those behind it that fit in; `due` has said that there is one."""
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
        """Everything that waits, taken out."""
        requests = [
            request
            for entry in self._entries
            for request in (entry.requests if isinstance(entry, Batch) else [entry])
        ]
        self._entries.clear()
        self.rows = 0
        return requests


class FairScheduler:
    """Weighted turns of tenants on a slice (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996).

    A tenant's clock advances by the time that it had the slice, divided by its share; who is furthest behind is next.
    Who was idle starts from the clock of the last turn, so time that nobody wanted is not saved up. One tenant has
    the slice at a time: a batch is as fast as on the slice alone, and waits for the batches of others.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.shares = dict(shares)
        self.virtual_times = dict.fromkeys(shares, 0.0)
        self._virtual_now = 0.0
        self._running: dict[str, int] = dict.fromkeys(shares, 0)

    def order(self) -> list[str]:
        """Tenants, who is furthest behind first."""
        return sorted(self.virtual_times, key=lambda name: max(self.virtual_times[name], self._virtual_now))

    def may_start(self, tenant: str, *, others_wait: bool) -> bool:
        """Whether it may start a batch: nobody has the slice, or it has it itself and nobody else wants it."""
        if any(count for name, count in self._running.items() if name != tenant):
            return False
        return not (self._running[tenant] and others_wait)

    def start(self, tenant: str) -> None:
        """A batch of it starts."""
        self.virtual_times[tenant] = max(self.virtual_times[tenant], self._virtual_now)
        self._virtual_now = self.virtual_times[tenant]
        self._running[tenant] += 1

    def end(self, tenant: str, seconds: float) -> None:
        """It has ended after so long."""
        self._running[tenant] -= 1
        self.virtual_times[tenant] += seconds / self.shares[tenant]
