"""The least sum of the stages' seconds of a pipeline across given entries, under two thresholds, exactly.

At a longest stage and a longest end of a step every stage of a way may have an interval of layers, which depends on
its place alone: how many stages are behind it (they say how many micro-batches it keeps), at which end it stands,
beside whom. So an entry's stages may have any number of layers between two sums, each at the same price, and the order
of the entries, their ways and layers follow by dynamic programming from the last stage to the first: over the entries
that are placed, their stages, and their layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.strategy.search.hetero_pipeline.memory_capacity import (
    FIRST,
    LAST,
    MIDDLE,
    Counts,
    Floats,
)
from torchsplit_core.strategy.search.hetero_pipeline.stage_configs import StageConfig, StageRole
from torchsplit_core.strategy.search.hetero_pipeline.stage_tables import StageTable

INFINITE = float("inf")
Key = tuple[int, int]
"""Entries that are placed, as bits, and their stages."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The stages of one entry, the first of the pipeline first. `entry`: its place among those of the chain."""

    entry: int
    way: StageConfig
    layers: tuple[int, ...]
    places: tuple[StageRole, ...]


@dataclass(frozen=True, slots=True)
class ThresholdTable:
    """A table under thresholds: the layers that each way's stages may have."""

    table: StageTable
    near: Counts
    """way × stages behind: most layers of a stage between two of its own entry."""
    far: Counts
    first: tuple[Counts, Counts]
    """Near and far."""
    last: tuple[Counts, Counts]
    least: Counts
    sums: Counts
    """Of `near`, over the stages behind."""


class StageAssignment:
    """A pipeline across all of these entries."""

    def __init__(self, tables: Sequence[StageTable], layers: int) -> None:
        self.tables, self.layers = tables, layers
        self.full = (1 << len(tables)) - 1
        self._priced: dict[tuple[int, int, int, bool, bool], tuple[Floats, Counts]] = {}
        self._empty = np.full(layers + 1, INFINITE)
        self._empty[0] = 0.0
        taken = np.arange(layers + 1)[:, None] - np.arange(layers + 1)
        self._left = np.where(taken >= 0, taken, layers + 1)
        self.groups = [
            {int(count): np.flatnonzero(table.stages == count) for count in np.unique(table.stages)}
            for table in tables
        ]

    def best(self, longest: float, after: float) -> tuple[float, tuple[Segment, ...]] | None:
        """The least sum of the stages' seconds and a pipeline that has it; None where none is within both."""
        limited = [_limit_table(table, longest, after) for table in self.tables]
        self._priced.clear()
        values: dict[Key, Floats] = {(0, 0): self._empty}
        routes: dict[Key, list[tuple[Key, int, int]]] = {}
        most = self._most_left(limited)
        for mask in range(self.full):
            for behind in _useful(values, mask, self.layers - most[mask]):
                for entry, count in self._next(mask, behind):
                    prices = self._prices(limited[entry], entry, count, mask, behind)[0]
                    key = (mask | 1 << entry, behind + count)
                    sums = self._sums(values[mask, behind], prices)
                    old = values.get(key)
                    values[key] = sums if old is None else np.minimum(old, sums)
                    routes.setdefault(key, []).append(((mask, behind), entry, count))
        ends = [(values[key][self.layers], key) for key in values if key[0] == self.full]
        least, key = min(ends, default=(INFINITE, (0, 0)))
        if least == INFINITE:
            return None
        return float(least), self._trace_back(limited, values, routes, key)

    def _sums(self, known: Floats, prices: Floats) -> Floats:
        """Least sums: entry n is the least known[l] + prices[n − l]."""
        finite = np.flatnonzero(np.isfinite(known))
        return np.asarray((np.append(prices, INFINITE)[self._left[:, finite]] + known[finite]).min(axis=1))

    def _most_left(self, placed: list[ThresholdTable]) -> list[int]:
        """By the entries that are placed: no more layers than that lie on the others."""
        most_of_entry = []
        for entry, groups in enumerate(self.groups):
            every = (
                _interval(placed[entry], chosen, count, 1, False, first)[1].max()
                for count, chosen in groups.items()
                for first in (False, True)
                if count < self.layers
            )
            most_of_entry.append(int(max(every, default=0)))
        entries = range(len(most_of_entry))
        left = [
            sum(most_of_entry[other] for other in entries if not mask >> other & 1)
            for mask in range(self.full)
        ]
        # Of the last stage, which keeps one micro-batch, nothing is said.
        return [self.layers, *left[1:]]

    def _next(self, mask: int, behind: int) -> Iterator[tuple[int, int]]:
        """Entries that are not placed yet, with every number of stages that leaves layers for the others."""
        for entry, groups in enumerate(self.groups):
            if not mask >> entry & 1:
                others = self.full & ~(mask | 1 << entry)
                left = self.layers - behind - others.bit_count()
                yield from ((entry, count) for count in groups if count <= left)

    def _prices(
        self, placed: ThresholdTable, entry: int, count: int, mask: int, behind: int
    ) -> tuple[Floats, Counts]:
        """Least seconds of the entry's stages by their layers in all, and the way that has it; reckoned once."""
        last, first = not mask, mask | 1 << entry == self.full
        key = (entry, count, behind, last, first)
        if key not in self._priced:
            self._priced[key] = self._compute_prices(
                placed, self.groups[entry][count], count, behind, last, first
            )
        return self._priced[key]

    def _compute_prices(
        self, placed: ThresholdTable, chosen: Counts, count: int, behind: int, last: bool, first: bool
    ) -> tuple[Floats, Counts]:
        table = placed.table
        least, most = _interval(placed, chosen, count, behind, last, first)
        crossings = 2 - last - first if count > 1 else 1
        fixed = (count - crossings) * table.near_s[chosen] + crossings * table.far_s[chosen]
        if last:
            fixed = fixed + table.logits_s[chosen]
        x = np.arange(self.layers + 1)
        price = fixed[:, None] + table.layer_s[chosen][:, None] * x
        price[(x < least[:, None]) | (x > most[:, None])] = INFINITE
        cheapest = price.argmin(axis=0)
        return price[cheapest, x], chosen[cheapest]

    def _trace_back(
        self,
        placed: list[ThresholdTable],
        values: dict[Key, Floats],
        routes: dict[Key, list[tuple[Key, int, int]]],
        key: Key,
    ) -> tuple[Segment, ...]:
        """The pipeline of a value, from its first stage to its last."""
        left, segments = self.layers, []
        while key[0]:
            least: tuple[float, int, Key, int, int] | None = None
            for before, entry, count in routes[key]:
                prices, ways = self._prices(placed[entry], entry, count, *before)
                total = values[before][: left + 1][::-1] + prices[: left + 1]
                layers = int(total.argmin())
                value = float(total[layers])
                if least is None or value < least[0]:
                    least = (value, layers, before, entry, int(ways[layers]))
            assert least is not None, "every value has a route"
            _, layers, before, entry, way = least
            segments.append(self._segment(placed[entry], entry, way, before, layers))
            left, key = left - layers, before
        return tuple(segments)

    def _segment(self, placed: ThresholdTable, entry: int, way: int, before: Key, layers: int) -> Segment:
        """Layers of an entry's stages: as even as their intervals allow."""
        table = placed.table
        count = int(table.stages[way])
        ends = (not before[0], before[0] | 1 << entry == self.full)
        intervals = [
            _most(placed, np.array([way]), count, before[1], number, *ends) for number in range(count)
        ]
        most = [int(interval[0][0]) for interval in intervals]
        assigned = [int(interval[1][0]) for interval in intervals]
        for _ in range(layers - sum(assigned)):
            assigned[min((n for n in range(count) if assigned[n] < most[n]), key=lambda n: assigned[n])] += 1
        places = [
            StageRole(
                before[1] + number + 1,
                first=ends[1] and number == count - 1,
                last=ends[0] and number == 0,
                far=(number == 0 and not ends[0]) or (number == count - 1 and not ends[1]),
            )
            for number in range(count)
        ]
        return Segment(entry, table.ways[way], tuple(reversed(assigned)), tuple(reversed(places)))


def _limit_table(table: StageTable, longest: float, after: float) -> ThresholdTable:
    times, (least, most) = table.by_time(longest), table.by_after(after)

    def within(role: int, far: int) -> Counts:
        by_time = np.minimum(times[:, int(role == LAST), far], most[:, role])
        return np.minimum(table.room[:, :, role], by_time[:, None])

    near = within(MIDDLE, 0)
    sums = np.concatenate([np.zeros((len(near), 1), np.int64), near.cumsum(axis=1)], axis=1)
    return ThresholdTable(
        table,
        near,
        within(MIDDLE, 1),
        (within(FIRST, 0), within(FIRST, 1)),
        (within(LAST, 0), within(LAST, 1)),
        least,
        sums,
    )


def _most(
    placed: ThresholdTable, chosen: Counts, count: int, behind: int, number: int, last: bool, first: bool
) -> tuple[Counts, Counts]:
    """Most and fewest layers of an entry's stage `number`, counted from the pipeline's end."""
    at = behind + number
    far = (number == 0 and not last) or (number == count - 1 and not first)
    if last and number == 0:
        return placed.last[far][chosen, at], placed.least[chosen, LAST]
    if first and number == count - 1:
        return placed.first[far][chosen, at], placed.least[chosen, FIRST]
    return (placed.far if far else placed.near)[chosen, at], placed.least[chosen, MIDDLE]


def _interval(
    placed: ThresholdTable, chosen: Counts, count: int, behind: int, last: bool, first: bool
) -> tuple[Counts, Counts]:
    """Fewest and most layers of all of an entry's stages; none where one of them may have none.

    Those between its ends are the less the further they are from the pipeline's end, so the furthest is looked at.
    """
    least = np.zeros(len(chosen), np.int64)
    most = np.zeros(len(chosen), np.int64)
    able = np.ones(len(chosen), bool)
    for number in sorted({0, max(0, count - 2), count - 1}):
        high, low = _most(placed, chosen, count, behind, number, last, first)
        able &= high >= low
        if number in (0, count - 1):
            least, most = least + low, most + high
    if count > 2:
        most = most + placed.sums[chosen, behind + count - 1] - placed.sums[chosen, behind + 1]
        least = least + (count - 2) * placed.least[chosen, MIDDLE]
    return np.where(able, least, 1), np.where(able, most, 0)


def _useful(values: dict[Key, Floats], mask: int, fewest: int) -> list[int]:
    """Stages behind with which these entries have a value worth going on from.

    Fewer stages behind allow as much to those before them, so that a sum that they have too is of no use; nor are
    fewer layers than the other entries leave. What is of no use becomes infinite.
    """
    useful = []
    best: Floats | None = None
    for behind in sorted(stages for other, stages in values if other == mask):
        value = values[mask, behind]
        value[: max(0, fewest)] = INFINITE
        if best is not None:
            value[value >= best] = INFINITE
        if np.isfinite(value).any():
            useful.append(behind)
            best = value.copy() if best is None else np.minimum(best, value)
    return useful
