"""A bound on the sum of a few pipelines that knows the links, and pipelines on the way to it.

A vector t_1 ≥ t_2 ≥ … is reached by pipelines of these values or more on disjoint GPUs. One that is refuted refutes all
above it, so the vectors that can be reached lie below some *vertices*: at first the best single pipeline in each place.
For a refuted vector p, each vertex u ≥ p is replaced by those with one u_i just below p_i. No sum is above the largest
of a vertex (outer approximation of monotone problems: Tuy's polyblocks). Vectors are refuted by packings first, which
take milliseconds, then by joint programs (joint_program.py), whose pipelines raise the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from torchsplit_core.placement.model.instance import Segments
from torchsplit_core.placement.replicas.annealing import VectorAnnealing
from torchsplit_core.placement.replicas.joint_program import JointProgram, ThresholdGraphs, packings_fit
from torchsplit_core.placement.replicas.pipelines import EQUAL
from torchsplit_core.placement.replicas.vector_packings import VectorPackings, is_below
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput
from torchsplit_core.placement.search.segment_table import candidate_values

MOST_PIPELINES = 4
"""Most pipelines that a fleet holds for vectors to be examined: more leave the bound by prices little to gain. Chosen,
not measured."""

_PACK_S = 3.0
"""Seconds of a packing, which takes some milliseconds. Chosen, not measured."""

_VERTICES, _TRIES, _MOVES = 4, 5, 5_000
"""Of annealings: the largest vertices that are tried, multiples of each, and moves a GPU, once more as many with every
try of a vertex by programs. Chosen, not measured."""

_BETWEEN = (0.5, 0.75, 0.9)
"""Where a vector is tried, from the value (0) to a vertex (1): each in turn while none is decided. Chosen, not
measured."""

_TRY_S, _RELAXED = 3.0, 0.3
"""Seconds of a program at first, twice as many once all of _BETWEEN were tried; the share of as many again for its
relaxation. Chosen, not measured."""

_FIRST = 0.4
"""Share of the moves for the vertices themselves, which are seldom reached. Chosen, not measured."""

_TILT = 0.12
"""How much lower all but the highest value of a vertex are for further tries. Chosen, not measured."""

_ALIKE = 3
"""GPUs of a class on average from which programs come before annealing. Chosen, not measured."""

_STUCK = 6
"""Annealings of a vertex without programs before it is given up. Chosen, not measured."""

Vector = tuple[float, ...]
"""Values of pipelines, descending; 0: no pipeline."""


def most_pipelines(graphs: ThresholdGraphs, most: int) -> int | None:
    """How many pipelines the memory of the fleet holds, at most `most`; None if more than MOST_PIPELINES."""
    lowest = float(candidate_values(graphs.instance, graphs.table)[0])
    for count in range(1, min(most, MOST_PIPELINES + 1)):
        if not packings_fit(graphs, [lowest] * (count + 1), _PACK_S):
            return count
    return most if most <= MOST_PIPELINES else None


class ThresholdVectors:
    """The vertices of up to `count` pipelines, none above `best`."""

    def __init__(self, graphs: ThresholdGraphs, best: float, count: int) -> None:
        self._graphs, self._count = graphs, count
        self._values = candidate_values(graphs.instance, graphs.table)
        self._packings = VectorPackings(graphs)
        self._vertices: dict[Vector, int] = {(best,) * count: 0}
        self._reached: list[Vector] = []
        self._tried: dict[tuple[int, Vector], JointProgram] = {}
        self._seed = 0
        self.stuck = False
        """Whether the last step had no program to try, because some threshold has too many patterns."""

    def bound(self) -> float:
        """No set of pipelines has a larger sum."""
        return max(map(sum, self._vertices), default=0.0)

    def refute_by_packings(self, value: float, clock: SearchClock) -> None:
        """Lower the bound towards `value` as far as packings do."""
        while not clock.over() and self.bound() > value * (1 + EQUAL):
            vertex = max(self._vertices, key=sum)
            if self._packings.fits(vertex):
                return
            self._cut(self._packings.least_refuted(vertex), self._packings.below)

    def anneal(self, value: float, clock: SearchClock) -> Iterator[list[Segments]]:
        """Pipelines between the value and the largest vertices, by annealing and bisection of each."""
        if self._few_classes(max(self._vertices, key=sum)):
            return
        largest = sorted(self._vertices, key=sum, reverse=True)[:_VERTICES]
        targets = list(dict.fromkeys(target for vertex in largest for target in (vertex, _tilted(vertex))))
        shares = dict.fromkeys(targets, 1.0)
        failed = dict.fromkeys(targets, 1.0)
        for number in range(_TRIES):
            for target in targets:
                if clock.over() or shares[target] * sum(target) <= value:
                    continue
                reached, pipelines = self._anneal(
                    self._scaled(target, shares[target]), 1.0 if number else _FIRST, clock
                )
                if pipelines:
                    yield pipelines
                    total = sum(
                        pipeline_throughput(self._graphs.instance, segments) for segments in pipelines
                    )
                    value = max(value, total)
                if not reached:
                    failed[target] = shares[target]
            for target in targets:
                shares[target] = (value / sum(target) + failed[target]) / 2

    def step(self, value: float, clock: SearchClock) -> Iterator[list[Segments]]:
        """Try a vector between the value and the largest vertex; yields disjoint pipelines found on the way."""
        vertex = max(self._vertices, key=sum)
        effort = self._vertices[vertex]
        self._vertices[vertex] = effort + 1
        share = _BETWEEN[effort % len(_BETWEEN)]
        wanted = self._scaled(vertex, (value + share * (sum(vertex) - value)) / sum(vertex))
        thresholds = [threshold for threshold in wanted if threshold > 0]
        programs = [
            (linked, tried, self._program(linked, tried))
            for linked, tried in self._programs(thresholds)
            if not any(is_below(self._padded(tried), known) for known in self._reached)
        ]
        self.stuck = not programs and effort >= _STUCK
        seconds = _TRY_S * 2 ** (effort // len(_BETWEEN))
        for _, tried, program in programs:
            if program.refuted(clock.part(_RELAXED * seconds)):
                self._cut(self._padded(tried), self._below)
                return
        if effort >= len(_BETWEEN) or not self._few_classes(vertex):
            reached, pipelines = self._anneal(wanted, effort + 1, clock)
            if pipelines:
                yield pipelines
            if reached:
                return
        for linked, tried, program in programs:
            if clock.over():
                return
            status, pipelines = program.solve(clock.part(seconds))
            if status == "none":
                self._cut(self._padded(tried), self._below)
                return
            if status == "found":
                if linked == len(tried):
                    self._reach(self._padded(tried))
                yield pipelines

    def _few_classes(self, vector: Vector) -> bool:
        """Whether GPUs of equal links make the programs so small that they are tried before annealing."""
        graphs = [self._graphs.graph(self._at_least(threshold)) for threshold in vector if threshold > 0]
        classes = [members for graph in graphs for members in graph.classes.members]
        return _ALIKE * len(classes) <= sum(map(len, classes))

    def _anneal(self, vector: Vector, effort: float, clock: SearchClock) -> tuple[bool, list[Segments]]:
        """Whether annealing reached a vector, and the pipelines that it ended with, if there are any."""
        thresholds = [threshold for threshold in vector if threshold > 0]
        if not self._packings.fits(vector) or any(is_below(vector, known) for known in self._reached):
            return False, []
        shapes = JointProgram(self._graphs, thresholds, 0).packing(clock.part(_PACK_S))
        if not shapes:
            return False, []
        self._seed += 1
        instance, table = self._graphs.instance, self._graphs.table
        moves = int(_MOVES * len(instance.kinds) * effort)
        annealing = VectorAnnealing(instance, table, thresholds, shapes, self._seed)
        reached, pipelines = annealing.find(moves, clock)
        if reached:
            self._reach(vector)
        return reached, pipelines

    def _reach(self, vector: Vector) -> None:
        # Sequences in flight may limit pipelines below their segments.
        if self._graphs.instance.flight is None:
            self._reached.append(vector)

    def _program(self, linked: int, thresholds: Sequence[float]) -> JointProgram:
        """The program, with the cuts of earlier tries."""
        key = (linked, tuple(thresholds))
        if key not in self._tried:
            self._tried[key] = JointProgram(self._graphs, thresholds, linked)
        return self._tried[key]

    def _padded(self, thresholds: Sequence[float]) -> Vector:
        return (*thresholds, *[0.0] * (self._count - len(thresholds)))

    def _programs(self, thresholds: Sequence[float]) -> list[tuple[int, Sequence[float]]]:
        """(number of trails, thresholds), the cheapest first: the highest alone, then with packings of the others."""
        count = len(thresholds)
        programs = []
        for linked in range(1, count + 1):
            if self._graphs.graph(thresholds[linked - 1]).patterns is None:
                break
            if linked == count or linked > 1:
                programs.append((linked, thresholds[:linked]))
            if 1 < linked < count:
                programs.append((linked, thresholds))
        return programs

    def _scaled(self, vector: Vector, factor: float) -> Vector:
        return tuple(self._at_least(value * factor) if value > 0 else 0.0 for value in vector)

    def _at_least(self, value: float) -> float:
        """The least value of a segment or link that is not below this one."""
        index = min(int(np.searchsorted(self._values, value)), len(self._values) - 1)
        return float(self._values[index])

    def _below(self, threshold: float) -> float:
        """The most that a pipeline is worth which does not reach the threshold."""
        if self._graphs.instance.flight is not None:
            # Sequences in flight give pipelines values of their own.
            return threshold
        index = int(np.searchsorted(self._values, threshold))
        return float(self._values[index - 1]) if index else 0.0

    def _cut(self, refuted: Vector, below: Callable[[float], float]) -> None:
        """Leave out all vectors that are not below the refuted one. below(t): the most that pipelines are worth which
        do not reach t."""
        cut: dict[Vector, int] = {}
        for vertex, effort in self._vertices.items():
            if not is_below(refuted, vertex):
                cut[vertex] = effort
                continue
            for place, threshold in enumerate(refuted):
                if threshold > 0:
                    lower = (*vertex[:place], below(threshold), *vertex[place + 1 :])
                    cut.setdefault(tuple(sorted(lower, reverse=True)), 0)
        self._vertices = {}
        for vertex in sorted(cut, key=sum, reverse=True):
            if not any(is_below(vertex, known) for known in self._vertices):
                self._vertices[vertex] = cut[vertex]


def _tilted(vertex: Vector) -> Vector:
    """The vertex with lower second and further values, where fast links are few."""
    return (*vertex[:1], *[value * (1 - _TILT) for value in vertex[1:]])
