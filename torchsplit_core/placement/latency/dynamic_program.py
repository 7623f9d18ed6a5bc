"""The exact least latency at a threshold by dynamic programming over the GPUs used, if their vectors are few.

GPUs of one kind with equal links form a class. A state is (layers so far, GPUs used of each class, the last segment's
multiset of classes); its cost is the least time of such a partial pipeline. Every state is reached from states with
fewer layers, so one sweep over the layers computes all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from torchsplit_core.placement.latency.pipeline_plan import (
    SAME,
    MinLatency,
    PassCosts,
    PipelinePlan,
    evaluate_plan,
)
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.model.symmetry_classes import (
    MOST_VECTORS,
    SymmetryClasses,
    symmetry_classes,
)

MOST_PATTERNS = 3_000
"""The matrix of links between patterns then takes 72 MB. Chosen, not measured."""

MOST_STATES = 20_000_000
"""States of 8 bytes each: 160 MB. Chosen, not measured."""


@dataclass(frozen=True)
class _Patterns:
    """Segments by the classes of their GPUs. counts: (patterns, classes). size: GPUs of each.

    value: (patterns, layers), column c - 1 the throughput with c layers. link: (patterns, patterns), from row to
    column, 0 if no disjoint GPU sets of the two are linked.
    """

    counts: np.ndarray
    size: np.ndarray
    value: np.ndarray
    link: np.ndarray


class LatencyDynamicProgram:
    """One instance, ready for any threshold. `work`: elementary steps of one sweep."""

    def __init__(
        self, instance: ProblemInstance, costs: PassCosts, classes: SymmetryClasses, patterns: _Patterns
    ) -> None:
        self._instance, self._costs, self._classes, self._patterns = instance, costs, classes, patterns
        members = np.array([len(gpus) for gpus in classes.members])
        self._vectors = np.indices(tuple((members + 1).tolist())).reshape(len(members), -1).T
        strides = np.ones(len(members), dtype=np.int64)
        strides[:-1] = np.cumprod((members + 1)[:0:-1])[::-1]
        self._offset = patterns.counts @ strides
        self._rows = [
            np.flatnonzero((self._vectors + count <= members).all(axis=1)) for count in patterns.counts
        ]
        self._used = self._vectors.sum(axis=1)
        self._segment_s = costs.segment_s(patterns.value)
        self._link_s = costs.link_s(patterns.link)

    def min_latency(self, threshold: float, known: PipelinePlan | None = None) -> MinLatency:
        """The least latency of the pipelines that reach the threshold, with the fewest GPUs; ignores `known`."""
        layers, patterns = self._instance.layers, self._patterns
        segment_s = np.where(patterns.value >= threshold, self._segment_s, np.inf)
        link_s = np.where(patterns.link >= threshold, self._link_s, np.inf)
        cost = np.full((layers + 1, len(self._vectors), len(patterns.size)), np.inf)
        able = [np.flatnonzero(np.isfinite(row)) + 1 for row in segment_s]
        for pattern, counts in enumerate(able):
            cost[counts, self._offset[pattern], pattern] = segment_s[pattern, counts - 1]
        for done in range(1, layers):
            if not np.isfinite(cost[done]).any():
                continue
            for pattern, counts in enumerate(able):
                fitting = counts[counts <= layers - done]
                if not len(fitting):
                    continue
                rows = self._rows[pattern]
                joined = (cost[done, rows] + link_s[:, pattern]).min(axis=1)
                reached = np.flatnonzero(np.isfinite(joined))
                if not len(reached):
                    continue
                target = np.ix_(done + fitting, rows[reached] + self._offset[pattern], np.array([pattern]))
                now = joined[reached] + segment_s[pattern, fitting - 1][:, None]
                cost[target] = np.minimum(cost[target], now[:, :, None])
        least = float(cost[layers].min())
        if not np.isfinite(least):
            return MinLatency(None, float("inf"))
        plan = evaluate_plan(self._instance, self._costs, self._backtrack(cost, segment_s, link_s))
        assert plan is not None, "the sweep holds pipelines that keep every rule"
        return MinLatency(plan, min(least, plan.latency_s))

    def _backtrack(self, cost: np.ndarray, segment_s: np.ndarray, link_s: np.ndarray) -> Segments:
        """The pipeline of least cost, read from its end; of equal ones the one with the fewest GPUs."""
        done = self._instance.layers
        rows, lasts = np.nonzero(cost[done] <= cost[done].min() * (1 + SAME))
        end = np.lexsort((lasts, rows, self._used[rows]))[0]
        row, pattern = int(rows[end]), int(lasts[end])
        steps = []
        while True:
            total_s, before = cost[done, row, pattern], row - int(self._offset[pattern])
            if before == 0 and segment_s[pattern, done - 1] == total_s:
                steps.append((done, pattern))
                return self._assign_gpus(steps[::-1])
            counts = np.flatnonzero(np.isfinite(segment_s[pattern, : done - 1])) + 1
            total = cost[done - counts, before] + link_s[:, pattern] + segment_s[pattern, counts - 1][:, None]
            index, last = np.argwhere(total == total_s)[0].tolist()
            steps.append((int(counts[index]), pattern))
            done, row, pattern = done - int(counts[index]), before, last

    def _assign_gpus(self, steps: list[tuple[int, int]]) -> Segments:
        """Assign GPUs of each class in ascending order."""
        left = [list(members) for members in self._classes.members]
        segments = []
        for count, pattern in steps:
            gpus: list[int] = []
            for number, amount in enumerate(self._patterns.counts[pattern].tolist()):
                gpus += left[number][:amount]
                del left[number][:amount]
            segments.append((count, tuple(sorted(gpus))))
        return tuple(segments)

    @property
    def work(self) -> float:
        """Most elementary steps of a sweep."""
        width, layers = len(self._patterns.size), self._instance.layers
        return float(layers * sum(len(rows) for rows in self._rows) * (width + layers / 2))


def build_dynamic_program(instance: ProblemInstance, costs: PassCosts) -> LatencyDynamicProgram | None:
    """The dynamic program of an instance; None if it has too many states."""
    classes = symmetry_classes(instance, MOST_VECTORS)
    if classes is None:
        return None
    members = np.array([len(gpus) for gpus in classes.members])
    chosen: list[tuple[int, ...]] = []
    for size in range(1, min(instance.max_gpus, len(instance.kinds)) + 1):
        for pattern in combinations_with_replacement(range(len(members)), size):
            if all(pattern.count(index) <= members[index] for index in set(pattern)):
                chosen.append(pattern)
            if len(chosen) > MOST_PATTERNS:
                return None
    if len(chosen) * float(np.prod(members + 1)) * (instance.layers + 1) > MOST_STATES:
        return None
    counts = np.array([np.bincount(pattern, minlength=len(members)) for pattern in chosen])
    known: dict[tuple[int, ...], list[float]] = {}
    values = []
    for pattern in chosen:
        kinds = tuple(sorted(classes.kinds[index] for index in pattern))
        if kinds not in known:
            known[kinds] = [instance.value(kinds, count) for count in range(1, instance.layers + 1)]
        values.append(known[kinds])
    from_one = np.array([classes.links[list(pattern)].min(axis=0) for pattern in chosen])
    link = np.array([from_one[:, list(pattern)].min(axis=1) for pattern in chosen]).T
    return LatencyDynamicProgram(
        instance,
        costs,
        classes,
        _Patterns(counts, counts.sum(axis=1), np.array(values, dtype=np.float64), link),
    )
