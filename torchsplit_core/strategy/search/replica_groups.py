"""Groups of entries beside each other, each with a part of the batch: copies on one entry, a pipeline across several.

Every division of some of the entries into groups is a way to train. What a group takes for a part of the batch is
searched only where it may matter: its bound stands in for it until then. The division with the least step under bounds
is looked at next; once nothing but searched parts is in it, no other is better.
"""

from __future__ import annotations

import heapq
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, count

from torchsplit_core.strategy.search.batch_split import best_split
from torchsplit_core.strategy.search.hetero_data_parallel import NodeGroup, cross_group_sync_s
from torchsplit_core.strategy.search.hetero_pipeline.branch_and_bound import (
    EQUAL,
    DevicePool,
    HeteroPipelineSearch,
    Pipeline,
)
from torchsplit_core.strategy.search.hetero_pipeline.closest_infeasible import fits
from torchsplit_core.values.training import ParallelConfig, StepEstimate

INFINITE = float("inf")
PARTS = 8
"""The parts of groups that are pipelines are multiples of that share of the batch, rounded down, or of 1."""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries, by their places in the fleet, that train one part of the batch; one entry copies, several a pipeline."""

    entries: tuple[int, ...]
    sequences: int
    seconds: float
    copies: tuple[ParallelConfig, StepEstimate] | None = None
    pipeline: Pipeline | None = None


@dataclass(frozen=True, slots=True)
class ReplicaGroups:
    """Groups that train together, the exchange of gradients between them, and the step."""

    groups: tuple[Group, ...]
    exchange_s: float
    seconds: float


class GroupCost(ABC):
    """A group by its part of the batch: `seconds` are exact where they are `solved`, else no step is shorter."""

    def __init__(self, entries: tuple[int, ...]) -> None:
        self.entries = entries
        self.seconds: dict[int, float] = {}
        self.solved: set[int] = set()

    @cached_property
    def rate(self) -> float:
        """Sequences a second that it does not pass; as known when it was first asked."""
        return max((part / seconds for part, seconds in self.seconds.items()), default=0.0)

    def exact(self) -> dict[int, float]:
        """Of the parts that are settled and fit."""
        return {part: self.seconds[part] for part in self.solved if self.seconds[part] < INFINITE}

    @abstractmethod
    def solve(self, part: int, most_s: float = INFINITE, deadline: float = INFINITE) -> None:
        """Search that part as far as it may take less than so many seconds; on time."""

    @abstractmethod
    def group(self, part: int) -> Group:
        """With a settled part."""


class ReplicatedGroup(GroupCost):
    """One entry that trains copies of the model."""

    def __init__(self, place: int, entry: NodeGroup, batch: int) -> None:
        super().__init__((place,))
        self.entry = entry
        if entry.least < INFINITE:
            self.seconds = {part: part * entry.least for part in range(1, batch)}
        for part in self.seconds.keys() & entry.steps_by_part.keys():
            self.solve(part)

    def solve(self, part: int, most_s: float = INFINITE, deadline: float = INFINITE) -> None:
        self.seconds[part] = self.entry.seconds(part)
        self.solved.add(part)

    def group(self, part: int) -> Group:
        return Group(self.entries, part, self.seconds[part], copies=self.entry.best(part))


class PipelinedGroup(GroupCost):
    """A pipeline across exactly these entries."""

    def __init__(self, entries: tuple[int, ...], pools: Sequence[DevicePool]) -> None:
        super().__init__(entries)
        self.searches = {stock.batch: HeteroPipelineSearch(stock, entries) for stock in pools}
        for part, search in self.searches.items():
            self._record(part, search)

    def _record(self, part: int, search: HeteroPipelineSearch) -> None:
        self.seconds[part] = min(search.bound_s, search.least_s)
        if search.proven():
            self.seconds[part] = search.least_s
            self.solved.add(part)

    def solve(self, part: int, most_s: float = INFINITE, deadline: float = INFINITE) -> None:
        self.searches[part].run(deadline, most_s)
        self._record(part, self.searches[part])

    def group(self, part: int) -> Group:
        return Group(self.entries, part, self.seconds[part], pipeline=self.searches[part].best)


class ReplicaGroupSearch:
    """The search over divisions into two groups or more, of which one is a pipeline at least."""

    def __init__(self, entries: Sequence[NodeGroup], pool: DevicePool) -> None:
        """`stock`: of the same entries, with the whole batch."""
        self.entries, self.batch = entries, pool.batch
        self.model = entries[0].search.space.model
        self.best: ReplicaGroups | None = None
        self.proven = True
        self.bound_s = INFINITE
        self._members: dict[tuple[int, ...], GroupCost] = {}
        grain = max(1, self.batch // PARTS)
        self._pools = [pool.with_batch(part) for part in range(grain, self.batch, grain)]

    def run(self, deadline: float, known_s: float = INFINITE) -> None:
        """Find what takes less than a step known otherwise, until it is proven or the time is up."""
        if known_s == INFINITE and not any(fits(stock) for stock in self._pools):
            return
        heap = self._begin(known_s)
        while heap:
            bound, number, members = heapq.heappop(heap)
            least = min(known_s, self.best.seconds if self.best else INFINITE)
            if bound >= least * (1.0 - EQUAL):
                return
            if least < INFINITE and time.monotonic() >= deadline:
                self.proven, self.bound_s = False, bound
                return
            raised = self._bound(members)
            if raised <= bound:
                # As long as no step is known the time does not count: there is one, or none is proven.
                self._solve_division(members, least, deadline if least < INFINITE else INFINITE)
            if raised < least:
                heapq.heappush(heap, (max(bound, raised), number, members))

    def _begin(self, known_s: float) -> list[tuple[float, int, list[GroupCost]]]:
        """Divisions under the bound of groups that are evenly busy at their best rates."""
        number, heap = count(), []
        for division in _enumerate_divisions(len(self.entries)):
            members = [self._member(entries) for entries in division]
            rates = [member.rate for member in members]
            bound = self.batch / sum(rates) + self._exchange_s(members) if all(rates) else INFINITE
            if bound < known_s:
                heap.append((bound, next(number), members))
        heapq.heapify(heap)
        return heap

    def _member(self, entries: tuple[int, ...]) -> GroupCost:
        if entries not in self._members:
            if len(entries) == 1:
                made: GroupCost = ReplicatedGroup(entries[0], self.entries[entries[0]], self.batch)
            else:
                made = PipelinedGroup(entries, self._pools)
            self._members[entries] = made
        return self._members[entries]

    def _exchange_s(self, members: Sequence[GroupCost]) -> float:
        entries = [self.entries[place] for member in members for place in member.entries]
        return cross_group_sync_s(entries, self.model, len(members))

    def _bound(self, members: Sequence[GroupCost]) -> float:
        """No step of that division is shorter; infinite where no parts add up to the batch."""
        split = best_split([member.seconds for member in members], self.batch)
        return split[0] + self._exchange_s(members) if split else INFINITE

    def _solve_division(self, members: Sequence[GroupCost], least: float, deadline: float) -> None:
        """Search the parts of the division that are best under bounds, and keep what is better than all known."""
        exchange = self._exchange_s(members)
        split = best_split([member.seconds for member in members], self.batch)
        assert split is not None, "a division with a bound has parts"
        for member, part in zip(members, split[1], strict=True):
            if part not in member.solved:
                member.solve(part, least - exchange, deadline)
        exact = best_split([member.exact() for member in members], self.batch)
        if exact is not None and exact[0] + exchange < least * (1.0 - EQUAL):
            groups = tuple(member.group(part) for member, part in zip(members, exact[1], strict=True))
            self.best = ReplicaGroups(groups, exchange, exact[0] + exchange)


def _enumerate_divisions(entries: int) -> Iterator[list[tuple[int, ...]]]:
    """Of all sets of three entries or more into groups, two at least, of which one has several entries."""
    for size in range(3, entries + 1):
        for taking in combinations(range(entries), size):
            yield from (division for division in _divisions(taking) if 1 < len(division) < size)


def _divisions(places: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Every division into groups, each in the order of the places."""
    if not places:
        yield []
        return
    first, rest = places[0], places[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = tuple(place for place in rest if place not in others)
            for division in _divisions(left):
                yield [(first, *others), *division]
