"""Small instances: every pipeline, with pruning. Cheaper than one integer program.

Depth first, the segments of highest throughput first. A pipeline of `done` layers is pruned when its own value or
reach(rest) is not above the best so far: reach is the best value for the rest if every GPU were free and every link
fast. A second pass, at the best value, finds the fewest GPUs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput

MOST_MOVES = 600
"""Most segments (GPU sets × layer counts) of a small instance."""

MOST_STEPS = 200_000
"""Most moves before the search is given up: some tens of milliseconds."""

Move = tuple[float, int, int]
"""A segment's throughput, its layer count, and the index of its GPU set."""


def search_exhaustively(instance: ProblemInstance) -> SearchResult | None:
    """The proven best, with the fewest GPUs; None if the instance is not small or takes too many steps."""
    gpus = len(instance.kinds)
    sets = sum(comb(gpus, size) for size in range(1, instance.max_gpus + 1))
    if sets * instance.layers > MOST_MOVES:
        return None
    begun = time.perf_counter()
    enumeration = _Enumeration(instance)
    try:
        enumeration.maximize_throughput()
        if enumeration.chosen:
            enumeration.minimize_gpus()
    except _TooManySteps:
        return None
    segments = tuple((count, enumeration.sets[index]) for count, index in enumeration.chosen)
    statistics = {"steps": enumeration.steps, "search_s": time.perf_counter() - begun}
    return SearchResult(enumeration.best, enumeration.best, True, segments, statistics)


class _TooManySteps(Exception):
    """The search takes more steps than it is worth."""


@dataclass
class _Enumeration:
    """The search with the best pipeline so far: `chosen` has (layer count, index of the set) for each segment."""

    instance: ProblemInstance
    best: float = 0.0
    chosen: tuple[tuple[int, int], ...] = ()
    steps: int = 0
    sets: tuple[tuple[int, ...], ...] = field(init=False)
    masks: list[int] = field(init=False)
    moves: list[Move] = field(init=False)
    reach: list[float] = field(init=False)
    known: dict[tuple[int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.instance
        gpus, layers = range(len(problem.kinds)), problem.layers
        self.sets = tuple(
            chosen for size in range(1, problem.max_gpus + 1) for chosen in combinations(gpus, size)
        )
        self.masks = [sum(1 << gpu for gpu in chosen) for chosen in self.sets]
        self.links = problem.links.tolist()
        kinds = [tuple(sorted(problem.kinds[gpu] for gpu in chosen)) for chosen in self.sets]
        worth = {
            (kind, count): problem.value(kind, count)
            for kind in dict.fromkeys(kinds)
            for count in range(1, layers + 1)
        }
        moves = [
            (worth[kind, count], count, index)
            for index, kind in enumerate(kinds)
            for count in range(1, layers + 1)
            if worth[kind, count] > 0
        ]
        self.moves = sorted(moves, key=lambda move: (-move[0], -move[1], move[2]))
        top = [max((v for v, c, _ in moves if c == count), default=0.0) for count in range(layers + 1)]
        self.reach = [float("inf")]
        for rest in range(1, layers + 1):
            self.reach.append(max(min(top[c], self.reach[rest - c]) for c in range(1, rest + 1)))

    def maximize_throughput(self) -> None:
        """Raise `best` and `chosen` to the highest throughput."""
        self._extend_better(self.instance.layers, -1, 0, float("inf"), ())

    def _extend_better(
        self, rest: int, last: int, used: int, value: float, chosen: tuple[tuple[int, int], ...]
    ) -> None:
        for throughput, count, index in self.moves:
            self._count_step()
            if throughput <= self.best or value <= self.best:
                return
            if count > rest or self.masks[index] & used:
                continue
            reached = self._with_link(min(value, throughput), last, index)
            left = rest - count
            if reached <= self.best or self.reach[left] <= self.best:
                continue
            if left:
                self._extend_better(left, index, used | self.masks[index], reached, (*chosen, (count, index)))
                continue
            whole = self._throughput((*chosen, (count, index)), reached)
            if whole > self.best:
                self.best, self.chosen = whole, (*chosen, (count, index))

    def minimize_gpus(self) -> None:
        """Of the pipelines of the best value, one with the fewest GPUs."""
        self.moves = [move for move in self.moves if move[0] >= self.best]
        self.moves.sort(key=lambda move: (len(self.sets[move[2]]), -move[1], move[2]))
        self._extend_smaller(self.instance.layers, -1, 0, 0, ())

    def _extend_smaller(
        self, rest: int, last: int, used: int, taken: int, chosen: tuple[tuple[int, int], ...]
    ) -> None:
        for _, count, index in self.moves:
            self._count_step()
            left, gpus = rest - count, taken + len(self.sets[index])
            if gpus + (left > 0) >= self._gpus():
                # Moves are sorted by the size of their sets, but one that ends the pipeline needs no other.
                if gpus >= self._gpus():
                    return
                continue
            if left < 0 or self.masks[index] & used or self.reach[left] < self.best:
                continue
            if self._with_link(self.best, last, index) < self.best:
                continue
            if left:
                self._extend_smaller(left, index, used | self.masks[index], gpus, (*chosen, (count, index)))
            elif self._throughput((*chosen, (count, index)), self.best) >= self.best:
                self.chosen = (*chosen, (count, index))

    def _throughput(self, chosen: tuple[tuple[int, int], ...], reached: float) -> float:
        """The throughput of a whole pipeline whose segments and links reach this."""
        if self.instance.flight is None:
            return reached
        return pipeline_throughput(self.instance, tuple((count, self.sets[index]) for count, index in chosen))

    def _gpus(self) -> int:
        return sum(len(self.sets[index]) for _, index in self.chosen)

    def _count_step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise _TooManySteps

    def _with_link(self, value: float, last: int, index: int) -> float:
        """The value with the link from the last set to this one."""
        if last < 0:
            return value
        pair = (last, index)
        if pair not in self.known:
            self.known[pair] = min(self.links[i][j] for i in self.sets[last] for j in self.sets[index])
        return min(value, self.known[pair])
