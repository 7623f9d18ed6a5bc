"""Simulated annealing for several pipelines of given thresholds: it finds, and proves nothing.

A state is a packing on GPUs in an order: for each pipeline a sequence of sets of GPUs, whose segments can hold all
layers at its threshold, and unused GPUs. Its cost is the number of links between GPUs of neighbouring segments that are
below the threshold, those little below it half; at 0 the sequences are pipelines that reach the vector, else pipelines
of the values of their slowest links. A move replaces slices of sequences: blocks of two pipelines are
exchanged, a block is moved or reversed, GPUs are exchanged, used or left out, if all layers are still held. Moves and
temperatures are counted and drawn from a seed, so the result does not depend on the machine's speed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import distribute_layers, pipeline_throughput
from torchsplit_core.placement.search.segment_table import SegmentTable

_HOTTEST, _COLDEST = 0.25, 0.06
"""Temperatures in slow links, from the first move to the last, falling geometrically. Chosen, not measured."""

_LITTLE, _FAR = 0.5, 0.8
"""The cost of a link just below the threshold t, and how far below it, in t, a link costs 1. Chosen, not measured."""

_NONE = 1e-6
"""A lower cost is 0: costs are added and subtracted."""

_BLOCK = 6
"""Most segments of a block. Chosen, not measured."""

_CHECK = 2_000
"""Moves between two looks at the clock: about 10 ms. Chosen, not measured."""

Slot = tuple[int, ...]
"""The GPUs of a segment."""
Splice = tuple[int, int, int, list[Slot]]
"""(pipeline, start, stop, slots): the slots that replace those from start to before stop."""


class VectorAnnealing:
    """One vector of thresholds. shapes: the kinds of the segments of a packing, by pipeline."""

    def __init__(
        self,
        instance: ProblemInstance,
        table: SegmentTable,
        thresholds: Sequence[float],
        shapes: Sequence[Sequence[tuple[int, ...]]],
        seed: int,
    ) -> None:
        self._instance, self._table = instance, table
        self._kinds, self._random = instance.kinds, random.Random(seed)
        self._slow = [_slowness(instance.links, threshold) for threshold in thresholds]
        self._held = [_intervals(table, threshold) for threshold in thresholds]
        self._alone = [[self._most(number, (kind,)) for kind in self._kinds] for number in range(len(shapes))]
        self._reordered = False
        """Whether the last move leaves all segments as they are."""
        self._deal(shapes)
        # Layers that the segments could hold beyond all.
        self._spare = [
            sum(self._most_layers(number, slot) for slot in slots) - instance.layers
            for number, slots in enumerate(self._slots)
        ]

    def find(self, moves: int, clock: SearchClock) -> tuple[bool, list[Segments]]:
        """Whether at most so many moves reach the thresholds, and disjoint pipelines, [] if there are none."""
        slow = sum(self._slow_links(number, slots) for number, slots in enumerate(self._slots))
        cooling = (_COLDEST / _HOTTEST) ** (1 / moves)
        temperature = _HOTTEST
        draw = self._random.random
        for move in range(moves):
            if slow < _NONE or (move % _CHECK == 0 and clock.over()):
                break
            temperature *= cooling
            splices, unused = self._propose()
            if not splices:
                continue
            spare = [0 if self._reordered else self._spare_change(splice) for splice in splices]
            if min([self._spare[splice[0]] + more for splice, more in zip(splices, spare, strict=True)]) < 0:
                continue
            more_slow = sum([self._slow_change(splice) for splice in splices])
            if more_slow > 0 and draw() >= math.exp(-more_slow / temperature):
                continue
            slow += more_slow
            for (number, start, stop, slots), more in zip(splices, spare, strict=True):
                self._slots[number][start:stop] = slots
                self._spare[number] += more
            if unused is not None:
                self._unused = unused
        clock.count("annealings")
        pipelines = self._pipelines()
        return slow < _NONE and bool(pipelines), pipelines

    def _deal(self, shapes: Sequence[Sequence[tuple[int, ...]]]) -> None:
        """GPUs for a packing, at random."""
        free: dict[int, list[int]] = {}
        for gpu in self._random.sample(range(len(self._kinds)), len(self._kinds)):
            free.setdefault(self._kinds[gpu], []).append(gpu)
        self._slots: list[list[Slot]] = []
        for shape in shapes:
            dealt = [tuple(free[kind].pop() for kind in kinds) for kinds in shape]
            self._random.shuffle(dealt)
            self._slots.append(dealt)
        self._unused = [gpu for gpus in free.values() for gpu in gpus]

    def _propose(self) -> tuple[list[Splice], list[int] | None]:
        """A move: the splices of different pipelines (none: no move), and the unused GPUs after it (None: the same)."""
        draw, slots = self._random.random, self._slots
        number = int(draw() * len(slots))
        row = slots[number]
        if not row:
            return [], None
        place = int(draw() * len(row))
        self._reordered = draw() < 0.5
        if self._reordered:
            return self._move_block(number, row, place), None
        other = int(draw() * (len(slots) + bool(self._unused)))
        if other == len(slots):
            return self._use_or_leave(number, row, place)
        if other == number:
            return self._exchange_inside(number, row, place), None
        return self._exchange_between(number, place, other), None

    def _move_block(self, number: int, row: list[Slot], place: int) -> list[Splice]:
        """A block elsewhere in its pipeline; in its old place, reversed."""
        draw = self._random.random
        stop = min(place + 1 + int(draw() * _BLOCK), len(row))
        to = int(draw() * (len(row) - (stop - place) + 1))
        block = row[place:stop]
        if to == place:
            return [(number, place, stop, block[::-1])]
        if to < place:
            return [(number, to, stop, block + row[to:place])]
        end = to + stop - place
        return [(number, place, end, row[stop:end] + block)]

    def _use_or_leave(
        self, number: int, row: list[Slot], place: int
    ) -> tuple[list[Splice], list[int] | None]:
        """An unused GPU for one in use, or as a segment of its own; or a segment left out."""
        draw, unused = self._random.random, self._unused[:]
        index, kind, old = int(draw() * len(unused)), draw(), row[place]
        new = unused[index]
        if kind < 0.7:
            member = int(draw() * len(old))
            unused[index] = old[member]
            return [(number, place, place + 1, [(*old[:member], new, *old[member + 1 :])])], unused
        if kind < 0.85:
            del unused[index]
            return [(number, place, place, [(new,)])], unused
        return [(number, place, place + 1, [])], [*unused, *old]

    def _exchange_inside(self, number: int, row: list[Slot], place: int) -> list[Splice]:
        """Two segments of a pipeline, or a GPU of each if they are of different kinds."""
        draw = self._random.random
        other = int(draw() * len(row))
        if other == place:
            return []
        first, last = min(place, other), max(place, other)
        left, right = row[first], row[last]
        if len(left) == len(right) == 1:
            left, right = right, left
        else:
            left, right = self._exchange_gpus(left, right)
        return [(number, first, last + 1, [left, *row[first + 1 : last], right])]

    def _exchange_between(self, number: int, place: int, other: int) -> list[Splice]:
        """Blocks of two pipelines, or a GPU of each."""
        draw, row, across = self._random.random, self._slots[number], self._slots[other]
        if not across:
            return []
        there = int(draw() * len(across))
        if len(row[place]) > 1 or (len(across[there]) > 1 and draw() < 0.5):
            left, right = self._exchange_gpus(row[place], across[there])
            return [(number, place, place + 1, [left]), (other, there, there + 1, [right])]
        size = back = 1
        if draw() < 0.5:
            size = 1 + int(draw() * (_BLOCK - 1))
            back = size if draw() < 0.6 else int(draw() * _BLOCK)
        stop, end = min(place + size, len(row)), min(there + back, len(across))
        return [(number, place, stop, across[there:end]), (other, there, end, row[place:stop])]

    def _exchange_gpus(self, left: Slot, right: Slot) -> tuple[Slot, Slot]:
        first, second = int(self._random.random() * len(left)), int(self._random.random() * len(right))
        return (
            (*left[:first], right[second], *left[first + 1 :]),
            (*right[:second], left[first], *right[second + 1 :]),
        )

    def _spare_change(self, splice: Splice) -> int:
        number, start, stop, slots = splice
        more, held = 0, self._most_layers
        for slot in slots:
            more += held(number, slot)
        for slot in self._slots[number][start:stop]:
            more -= held(number, slot)
        return more

    def _slow_change(self, splice: Splice) -> float:
        number, start, stop, slots = splice
        row = self._slots[number]
        before, after = row[max(start - 1, 0) : start], row[stop : stop + 1]
        return self._slow_links(number, [*before, *slots, *after]) - self._slow_links(
            number, row[max(start - 1, 0) : stop + 1]
        )

    def _slow_links(self, number: int, slots: list[Slot]) -> float:
        slow, total = self._slow[number], 0.0
        for left, right in pairwise(slots):
            if len(left) == len(right) == 1:
                total += slow[left[0]][right[0]]
            else:
                total += sum([slow[gpu][other] for gpu in left for other in right])
        return total

    def _most_layers(self, number: int, slot: Slot) -> int:
        if len(slot) == 1:
            return self._alone[number][slot[0]]
        kinds = self._kinds
        return self._most(number, tuple(sorted([kinds[gpu] for gpu in slot])))

    def _most(self, number: int, multiset: tuple[int, ...]) -> int:
        # A multiset that reaches the threshold with no layer count is of no use.
        return self._held[number].get(multiset, (0, -self._instance.layers))[1]

    def _pipelines(self) -> list[Segments]:
        """The sequences with layer counts; [] if these or the number of segments break a rule."""
        pipelines, table = [], self._table
        rows = {multiset: row for row, multiset in enumerate(table.multisets)}
        for number, slots in enumerate(self._slots):
            sets = [tuple(sorted(slot)) for slot in slots]
            multisets = [tuple(sorted(self._kinds[gpu] for gpu in slot)) for slot in sets]
            intervals = [self._held[number][multiset] for multiset in multisets]
            if sum(low for low, _ in intervals) > self._instance.layers:
                return []

            def value(index: int, count: int, multisets: list[tuple[int, ...]] = multisets) -> float:
                return float(table.values[rows[multisets[index]], count - 1])

            counts = distribute_layers(intervals, value, self._instance.layers)
            pipelines.append(tuple(zip(counts, sets, strict=True)))
        return (
            pipelines
            if all(pipeline_throughput(self._instance, segments) > 0 for segments in pipelines)
            else []
        )


def _slowness(links: np.ndarray, threshold: float) -> list[list[float]]:
    """The cost of every link; 0 of those that reach the threshold."""
    short = np.minimum(1.0, (threshold - links) / (_FAR * threshold))
    costs: list[list[float]] = np.where(links >= threshold, 0.0, _LITTLE + (1 - _LITTLE) * short).tolist()
    return costs


def _intervals(table: SegmentTable, threshold: float) -> dict[tuple[int, ...], tuple[int, int]]:
    """By multiset, the last interval of layer counts that reach the threshold."""
    intervals = {}
    for multiset, values in zip(table.multisets, table.values, strict=True):
        able = np.flatnonzero(values >= threshold)
        if len(able):
            high = int(able[-1])
            short = np.flatnonzero(values[:high] < threshold)
            intervals[multiset] = (int(short[-1]) + 2 if len(short) else 1, high + 1)
    return intervals
