"""Requests that wait, and the order in which they are taken: the queue of a stage, the turns on a shared slice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

Rows = tuple[memoryview, ...]
"""The bytes of each output for the rows of one request."""


@dataclass(slots=True, eq=False)
class Item:
    """Rows of one request that are worked on together. `joined` is when it joined the queue it is in.

    `alone`: it has a batch of its own, since a batch with it failed. `lost` counts the workers that died with it.
    """

    rows: int
    inputs: tuple[memoryview, ...]
    answer: asyncio.Future[Rows]
    joined: float
    alone: bool = False
    lost: int = 0

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more: answered, too late, or its client went away."""
        return self.answer.done()


@dataclass(slots=True, eq=False)
class Batch:
    """Items that were put together before the first stage and stay so through the row; `payload` is what the last
    stage that ran gave."""

    items: list[Item]
    joined: float
    payload: bytes | memoryview = b""

    @property
    def rows(self) -> int:
        """Of all its items."""
        return sum(item.rows for item in self.items)

    @property
    def gone(self) -> bool:
        """Whether nobody waits for any of it."""
        return all(item.gone for item in self.items)

    @property
    def alone(self) -> bool:
        """Two batches that another stage has worked on are not joined."""
        return True


@dataclass(slots=True)
class Queue:
    """First in first out. `rows` are those that wait, gone ones among them until they are passed."""

    max_wait_s: float = 0.0
    rows: int = 0
    _entries: deque[Item | Batch] = field(default_factory=deque)

    def join(self, entry: Item | Batch, *, first: bool = False) -> None:
        """At the end, or before all others where it was taken once already."""
        (self._entries.appendleft if first else self._entries.append)(entry)
        self.rows += entry.rows

    def head(self) -> Item | Batch | None:
        """The first that somebody waits for; those before it are dropped."""
        while self._entries and self._entries[0].gone:
            self.rows -= self._entries.popleft().rows
        return self._entries[0] if self._entries else None

    def due(self, now: float, max_batch: int) -> bool:
        """Whether a batch may start: enough rows wait, or the first has waited long enough."""
        head = self.head()
        if head is None:
            return False
        # A timer may wake a little early: a millionth of a second is no waiting.
        return head.alone or self.rows >= max_batch or now >= head.joined + self.max_wait_s - 1e-6

    def wakes(self) -> float | None:
        """When the first will have waited long enough; None where nothing waits."""
        head = self.head()
        return None if head is None else head.joined + self.max_wait_s

    def take(self, max_batch: int) -> Batch:
        """The next batch: the first entry, and those behind it that fit in; `due` has said that there is one."""
        head = self.head()
        assert head is not None, "a batch is taken where one is due"
        self._entries.popleft()
        self.rows -= head.rows
        if isinstance(head, Batch):
            return head
        batch = Batch([head], head.joined)
        rows = head.rows
        while not head.alone and (following := self.head()) is not None:
            if isinstance(following, Batch) or following.alone or rows + following.rows > max_batch:
                break
            self._entries.popleft()
            self.rows -= following.rows
            rows += following.rows
            batch.items.append(following)
        return batch

    def empty(self) -> list[Item]:
        """Everything that waits, taken out."""
        found = [
            item for entry in self._entries for item in (entry.items if isinstance(entry, Batch) else [entry])
        ]
        self._entries.clear()
        self.rows = 0
        return found


class Turns:
    """Weighted turns of tenants on a slice (start-time fair queueing: Goyal, Vin, Cheng, SIGCOMM 1996).

    A tenant's clock advances by the time that it had the slice, divided by its share; who is furthest behind is next.
    Who was idle starts from the clock of the last turn, so time that nobody wanted is not saved up. One tenant has
    the slice at a time: a batch is as fast as on the slice alone, and waits for the batches of others.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.shares = dict(shares)
        self.clocks = dict.fromkeys(shares, 0.0)
        self._now = 0.0
        self._running: dict[str, int] = dict.fromkeys(shares, 0)

    def order(self) -> list[str]:
        """Tenants, who is furthest behind first."""
        return sorted(self.clocks, key=lambda name: max(self.clocks[name], self._now))

    def free_for(self, tenant: str, *, others_wait: bool) -> bool:
        """Whether it may start a batch: nobody has the slice, or it has it itself and nobody else wants it."""
        if any(count for name, count in self._running.items() if name != tenant):
            return False
        return not (self._running[tenant] and others_wait)

    def start(self, tenant: str) -> None:
        """A batch of it starts."""
        self.clocks[tenant] = max(self.clocks[tenant], self._now)
        self._now = self.clocks[tenant]
        self._running[tenant] += 1

    def end(self, tenant: str, seconds: float) -> None:
        """It has ended after so long."""
        self._running[tenant] -= 1
        self.clocks[tenant] += seconds / self.shares[tenant]
