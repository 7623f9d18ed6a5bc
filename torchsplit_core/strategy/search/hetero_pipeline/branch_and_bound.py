"""The best pipeline across entries of a fleet, by sets of entries and micro-batches, with a bound on all of them.

A step takes (m − 1) · longest stage + all stages + longest end + a constant. Boxes of thresholds on the longest stage
and the longest end are searched by their bounds: the sum of the stages under the box's upper ends is exact, so it is a
bound with the lower ones. A box is cut by what is known already, then halved; the search ends where every box left is
no better than the best step.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, count

import numpy as np

from torchsplit_core.strategy.search.hetero_pipeline.memory_capacity import Floats
from torchsplit_core.strategy.search.hetero_pipeline.stage_assignment import Segment, StageAssignment
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfigs
from torchsplit_core.strategy.search.hetero_pipeline.stage_tables import StageTable
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.space import divisors

INFINITE = float("inf")
EQUAL = 1e-9
"""A bound that is less than the best by a smaller share proves it."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline and its step. `entries`: their places in the fleet's list; a micro-batch has so many sequences."""

    entries: tuple[int, ...]
    sequences: int
    micro_batches: int
    segments: tuple[Segment, ...]
    longest_s: float
    sum_s: float
    after_s: float
    fixed_s: float

    @property
    def seconds(self) -> float:
        """A step's."""
        return (self.micro_batches - 1) * self.longest_s + self.sum_s + self.after_s + self.fixed_s


def pipeline_of(
    entries: tuple[int, ...],
    sequences: int,
    micro_batches: int,
    segments: tuple[Segment, ...],
    fixed_s: float,
) -> Pipeline:
    """The step of given stages, each reckoned by itself."""
    stages = [
        (segment.way, layers, place)
        for segment in segments
        for layers, place in zip(segment.layers, segment.places, strict=True)
    ]
    times = [way.stage_s(layers, place) for way, layers, place in stages]
    after = max(sum(way.after_s(layers, place)) for way, layers, place in stages)
    ordered = tuple(entries[segment.entry] for segment in segments)
    return Pipeline(ordered, sequences, micro_batches, segments, max(times), sum(times), after, fixed_s)


@dataclass(slots=True)
class SearchTask:
    """A set of entries with a size of micro-batch. Its chain and its thresholds are made once they are needed."""

    entries: tuple[int, ...]
    sequences: int
    m: int
    longest_s: float
    """Bound on the longest stage."""
    chain: StageAssignment | None = None
    longest: Floats = field(default_factory=lambda: np.empty(0))
    after: Floats = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True, slots=True)
class SearchNode:
    """Thresholds by their places in the task's, both ends included. `solution`: the sum under the upper ends."""

    task: SearchTask
    longest: tuple[int, int]
    after: tuple[int, int]
    solution: tuple[float, tuple[Segment, ...]] | None = None


class DevicePool:
    """What the entries of a fleet can do with one batch, reckoned once it is asked for. All at their places."""

    def __init__(self, searches: Sequence[HomogeneousSearch]) -> None:
        self.searches = searches
        space = searches[0].space
        self.layers, self.batch = space.model.layers, space.job.global_batch
        self.micro_batch_sizes = divisors(self.batch)
        """Sequences that a micro-batch may have."""
        self._ways: dict[tuple[int, int], StageConfigs] = {}
        self._least: dict[tuple[int, int], tuple[float, float]] = {}
        self._tables: dict[tuple[int, int], StageTable] = {}

    def with_batch(self, batch: int) -> DevicePool:
        """The same entries with another batch, and micro-batches that divide both; what else is equal is shared."""
        made = DevicePool([search.with_batch(batch) for search in self.searches])
        made.micro_batch_sizes = tuple(size for size in self.micro_batch_sizes if batch % size == 0)
        made._least = self._least
        return made

    def ways(self, place: int, sequences: int) -> StageConfigs:
        """An entry's ways for micro-batches of so many sequences."""
        if (place, sequences) not in self._ways:
            self._ways[place, sequences] = StageConfigs(self.searches[place], sequences)
        return self._ways[place, sequences]

    def least(self, place: int, sequences: int) -> tuple[float, float]:
        """Of an entry, `Ways.least_per_layer`, whatever the batch."""
        if (place, sequences) not in self._least:
            self._least[place, sequences] = self.ways(place, sequences).least_per_layer()
        return self._least[place, sequences]

    def table(self, place: int, sequences: int) -> StageTable:
        """An entry's table for micro-batches of so many sequences."""
        if (place, sequences) not in self._tables:
            self._tables[place, sequences] = StageTable(self.ways(place, sequences).all(), self.layers)
        return self._tables[place, sequences]


class HeteroPipelineSearch:
    """The search; `run` goes on where it stopped."""

    def __init__(self, pool: DevicePool, only: tuple[int, ...] | None = None) -> None:
        """`only`: pipelines across exactly these entries; else across any two or more."""
        self.pool, self.searches = pool, pool.searches
        self.layers, self.batch = pool.layers, pool.batch
        self.fixed_s = self.searches[0].c.fixed_s
        self.best: Pipeline | None = None
        self.solved = 0
        self._order = count()
        self._heap: list[tuple[float, int, SearchTask | SearchNode]] = []
        self._begin(only)

    def _begin(self, only: tuple[int, ...] | None) -> None:
        """Every set of two entries or more with every size of micro-batch, under its bound."""
        places = range(len(self.searches)) if only is None else only
        fewest = 2 if only is None else len(only)
        for sequences in self.pool.micro_batch_sizes:
            least = {place: self.pool.least(place, sequences) for place in places}
            feasible = [place for place, (rate, _) in least.items() if rate < INFINITE]
            for size in range(fewest, min(len(feasible), self.layers) + 1):
                for entries in combinations(feasible, size):
                    # Layers per second, all stages equally busy; and no layer takes less than the fastest way's.
                    longest = self.layers / sum(1.0 / least[place][0] for place in entries)
                    alone = self.layers * min(least[place][1] for place in entries)
                    m = self.batch // sequences
                    bound = (m - 1) * longest + max(alone, longest) + self.fixed_s
                    self._push(bound, SearchTask(entries, sequences, m, longest))

    def _push(self, bound: float, item: SearchTask | SearchNode) -> None:
        heapq.heappush(self._heap, (bound, next(self._order), item))

    @property
    def least_s(self) -> float:
        """Seconds of the best pipeline that was met."""
        return self.best.seconds if self.best else INFINITE

    @property
    def bound_s(self) -> float:
        """Seconds below which no pipeline comes that was not met."""
        return self._heap[0][0] if self._heap else INFINITE

    def proven(self, known_s: float = INFINITE) -> bool:
        """Whether no pipeline is better than the best, or than a step known otherwise."""
        return self.bound_s >= min(self.least_s, known_s) * (1.0 - EQUAL)

    def run(self, deadline: float, known_s: float = INFINITE, *, to_the_end: bool = False) -> None:
        """Search until it is proven or the time is up (`time.monotonic`).

        `to_the_end`: as long as no step is known the time does not count: that there is none is to be proven.
        """
        while not self.proven(known_s):
            known = not to_the_end or min(known_s, self.least_s) < INFINITE
            if known and time.monotonic() >= deadline:
                break
            bound, _, item = heapq.heappop(self._heap)
            node = self._open(item) if isinstance(item, SearchTask) else item
            if node is not None:
                self._solve(node, bound, min(self.least_s, known_s))

    def _open(self, task: SearchTask) -> SearchNode | None:
        """The box of all thresholds of a task."""
        tables = [self.pool.table(place, task.sequences) for place in task.entries]
        if not all(table.ways for table in tables):
            return None
        task.chain = StageAssignment(tables, self.layers)
        times = np.unique(np.concatenate([table.stage_times() for table in tables]))
        task.longest = times[times >= task.longest_s * (1.0 - EQUAL)]
        task.after = np.unique(np.concatenate([table.after.ravel() for table in tables]))
        return (
            SearchNode(task, (0, len(task.longest) - 1), (0, len(task.after) - 1))
            if len(task.longest)
            else None
        )

    def _solve(self, node: SearchNode, bound: float, best: float) -> None:
        """Reckon a box, and put what is left of it back in halves."""
        task = node.task
        assert task.chain is not None, "an opened task has its chain"
        (low, high), (early, late) = node.longest, node.after
        solution = node.solution
        if solution is None:
            self.solved += 1
            solution = task.chain.best(float(task.longest[high]), float(task.after[late]))
            if solution is None:
                return
            best = min(best, self._record(task, solution[1]))
        fixed = solution[0] + self.fixed_s
        rest = best - fixed
        late = _last_within(task.after, early, late, rest - (task.m - 1) * task.longest[low])
        if task.m > 1:
            high = _last_within(task.longest, low, high, (rest - task.after[early]) / (task.m - 1))
        if high < low or late < early:
            return
        same = (high, late) == (node.longest[1], node.after[1])
        children = [SearchNode(task, (low, high), (early, late))] if not same else _branch(node, solution)
        for child in children:
            child_bound = (task.m - 1) * task.longest[child.longest[0]] + task.after[child.after[0]] + fixed
            if child_bound < best * (1.0 - EQUAL):
                self._push(max(bound, float(child_bound)), child)

    def _record(self, task: SearchTask, segments: tuple[Segment, ...]) -> float:
        pipeline = pipeline_of(task.entries, task.sequences, task.m, segments, self.fixed_s)
        if pipeline.seconds < self.least_s:
            self.best = pipeline
        return pipeline.seconds


def _last_within(values: Floats, low: int, high: int, most: float) -> int:
    """The last place up to `high` whose value is within `most`; below `low` where none is."""
    return min(high, int(np.searchsorted(values[low:], most * (1.0 + EQUAL), side="right")) + low - 1)


def _branch(node: SearchNode, solution: tuple[float, tuple[Segment, ...]]) -> list[SearchNode]:
    """A box cut where its thresholds are furthest apart by what they weigh; the upper half is solved already."""
    task = node.task
    (low, high), (early, late) = node.longest, node.after
    apart = (task.m - 1) * (task.longest[high] - task.longest[low])
    if high > low and (apart >= task.after[late] - task.after[early] or late == early):
        middle = (low + high) // 2
        value = (task.longest[low] * task.longest[high]) ** 0.5
        middle = min(high - 1, max(low, int(np.searchsorted(task.longest, value)))) if value > 0 else middle
        return [
            SearchNode(task, (low, middle), node.after),
            SearchNode(task, (middle + 1, high), node.after, solution),
        ]
    if late > early:
        middle = (early + late) // 2
        return [
            SearchNode(task, node.longest, (early, middle)),
            SearchNode(task, node.longest, (middle + 1, late), solution),
        ]
    return []
