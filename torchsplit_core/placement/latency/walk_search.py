"""The least latency within a component of any links: a bound by walks, groups divided step by step, then labels.

Groups begin as coarse as their patterns must be few (walks.py). Patterns whose bound is above the best known plan are
left out, the groups of the others are divided into GPUs that no link tells apart, and so on. At the end no group is
coarse, and a best-first search extends labels (layers so far, last pattern, GPUs used of each group) by the bound of
their completion: the first complete one is the least latency. If labels grow too many, the least bound of an open one
holds for all.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.placement.latency.path_latency import PathMinLatency, latency_classes
from torchsplit_core.placement.latency.pipeline_plan import SAME, PassCosts, evaluate_plan
from torchsplit_core.placement.latency.seconds_program import NEARLY
from torchsplit_core.placement.latency.walk_assignment import assign_walk
from torchsplit_core.placement.latency.walks import (
    Groups,
    WalkPatterns,
    WalkSweeps,
    groups_of,
    priced_bound,
    walk_patterns,
)
from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import Component
from torchsplit_core.placement.search.segment_table import SegmentTable

_ROUNDS = 40
"""Sweeps for the prices of a division of the GPUs. Chosen, not measured."""

_LABELS = 20_000
"""Labels that are extended at most. Chosen, not measured."""


@dataclass(frozen=True)
class _Label:
    """A partial pipeline. pattern, count: of its last segment. cost_s: its latency. used: GPUs of each group."""

    done: int
    pattern: int
    count: int
    cost_s: float
    used: np.ndarray
    before: _Label | None


def min_walk_latency(
    instance: ProblemInstance,
    costs: PassCosts,
    table: SegmentTable,
    choices: Sequence[Choice],
    component: Component,
    threshold: float,
    labels: Sequence[np.ndarray],
    beaten_s: float,
    clock: SearchClock,
) -> PathMinLatency | None:
    """The least latency of a component's pipelines below `beaten_s`; None if every division has too many patterns.

    labels: divisions of the GPUs to begin with, from fine to coarse: a number for each.
    """
    seconds = np.full_like(table.values, np.inf)
    for choice in choices:
        layers = slice(choice.low - 1, choice.high)
        seconds[choice.multiset, layers] = costs.segment_s(table.values[choice.multiset, layers])
    fine = latency_classes(instance, component).members
    gpus = component.gpus.tolist()
    divisions = [groups_of(row.tolist(), gpus, instance.kinds) for row in labels]
    homes = divisions[0] if divisions else fine

    def patterns_of(groups: Groups, coarse: WalkPatterns | None = None) -> WalkPatterns | None:
        return walk_patterns(
            instance, costs, table, seconds, groups, threshold, homes if coarse else groups, coarse
        )

    for homes in divisions or [fine]:
        patterns = patterns_of(homes)
        if patterns is not None:
            break
    else:
        return None
    best: Segments = ()
    limit_s, bound_s = beaten_s * (1 - NEARLY), 0.0
    prices = np.zeros(len(patterns.groups))
    while len(patterns.rows) and not clock.over():
        clock.count("divisions")
        sweeps = WalkSweeps(patterns, instance.layers)
        priced = priced_bound(sweeps, prices, limit_s, _ROUNDS, clock)
        prices, bound_s = priced.prices, max(bound_s, priced.bound_s * (1 - SAME))
        if bound_s >= limit_s:
            break
        ended, before = sweeps.forward(prices)
        visited = list(sweeps.walk(ended, before, prices))[::-1]
        steps = [(patterns.counts[state], count) for state, count in visited]
        pipeline = assign_walk(instance, costs, patterns.groups, steps, threshold)
        plan = evaluate_plan(instance, costs, pipeline) if pipeline else None
        if plan is not None and plan.throughput >= threshold and plan.latency_s < limit_s:
            best, limit_s = pipeline, plan.latency_s * (1 - NEARLY)
            if bound_s >= limit_s:
                break
        after = sweeps.backward(prices)
        through = (ended + after).min(axis=0) - float(prices @ patterns.sizes)
        keep = np.flatnonzero(through * (1 - SAME) < limit_s)
        if not len(keep):
            bound_s = limit_s
            break
        everywhere = _divided(patterns, fine, keep.tolist(), keep.tolist())
        if everywhere == patterns.groups:
            patterns = patterns.only(keep)
            search = _LabelSearch(WalkSweeps(patterns, instance.layers), after[:, keep], prices)
            minimum = search.run(bound_s, limit_s, clock)
            return PathMinLatency(minimum.segments or best, minimum.bound_s)
        on_walk = _divided(patterns, fine, keep.tolist(), [state for state, _ in visited])
        coarse, finer = patterns.only(keep), None
        for groups in (everywhere, on_walk):
            if finer is None and groups != patterns.groups:
                finer = patterns_of(groups, coarse)
        if finer is None:
            break
        parents = {gpu: number for number, members in enumerate(patterns.groups) for gpu in members}
        prices = prices[[parents[members[0]] for members in finer.groups]]
        patterns = finer
    if not len(patterns.rows):
        bound_s = limit_s
    return PathMinLatency(best, min(bound_s, limit_s))


def _divided(patterns: WalkPatterns, fine: Groups, keep: Sequence[int], visited: Sequence[int]) -> Groups:
    """The groups of the states that are kept, those of the visited ones divided into fine ones."""
    divide = set(np.flatnonzero(patterns.counts[visited].any(axis=0)).tolist())
    groups: list[tuple[int, ...]] = []
    for number in np.flatnonzero(patterns.counts[[*keep, *visited]].any(axis=0)).tolist():
        gpus = set(patterns.groups[number])
        if number in divide:
            groups += [members for members in fine if members[0] in gpus]
        else:
            groups.append(patterns.groups[number])
    return tuple(sorted(groups))


class _LabelSearch:
    """Best-first search over partial pipelines of patterns whose groups are fine."""

    def __init__(self, sweeps: WalkSweeps, after: np.ndarray, prices: np.ndarray) -> None:
        self._patterns, self._layers = sweeps.patterns, sweeps.layers
        self._after, self._prices = after, prices
        able = np.isfinite(self._patterns.seconds).any(axis=0)
        self._most = int(np.flatnonzero(able)[-1]) + 1
        self._seconds = self._patterns.seconds[:, : self._most].T
        self._credit_s = float(prices @ self._patterns.sizes)

    def run(self, bound_s: float, limit_s: float, clock: SearchClock) -> PathMinLatency:
        """The least latency below the limit; `bound_s` is already known."""
        patterns, number = self._patterns, 0
        nothing = np.zeros(len(patterns.groups), dtype=np.int64)
        queue: list[tuple[float, int, int, _Label]] = []
        known: dict[tuple[int, int, bytes], float] = {}

        def extend(label: _Label | None) -> None:
            nonlocal number
            done, used = (label.done, label.used) if label else (0, nothing)
            cost_s = np.full(len(patterns.rows), label.cost_s if label else 0.0)
            if label:
                cost_s = cost_s + patterns.hops.out_of(label.pattern)
            cost_s[(patterns.counts + used > patterns.sizes).any(axis=1)] = np.inf
            most = min(self._most, self._layers - done)
            ended_s = cost_s + self._seconds[:most]
            paid_s = (patterns.counts + used) @ self._prices - self._credit_s
            total_s = ended_s + paid_s + self._after[done + 1 : done + most + 1]
            if done + most == self._layers:
                total_s[-1] = ended_s[-1]
            total_s *= 1 - SAME
            for row, pattern in zip(*np.nonzero(total_s < limit_s), strict=True):
                took = used + patterns.counts[pattern]
                key = (done + int(row) + 1, int(pattern), took.tobytes())
                spent_s = float(ended_s[row, pattern])
                if spent_s >= known.get(key, np.inf):
                    continue
                known[key] = spent_s
                number += 1
                child = _Label(key[0], key[1], int(row) + 1, spent_s, took, label)
                heapq.heappush(queue, (float(total_s[row, pattern]), -key[0], number, child))

        extend(None)
        for _ in range(_LABELS):
            if not queue:
                return PathMinLatency((), limit_s)
            bound_s = max(bound_s, min(queue[0][0], limit_s))
            if clock.over():
                break
            label = heapq.heappop(queue)[3]
            if label.done == self._layers:
                return PathMinLatency(self._segments(label), bound_s)
            clock.count("labels")
            extend(label)
        return PathMinLatency((), bound_s)

    def _segments(self, last: _Label) -> Segments:
        """The pipeline of a complete label, on the first GPUs of each group."""
        chain: list[_Label] = []
        label: _Label | None = last
        while label is not None:
            chain.append(label)
            label = label.before
        left = [list(members) for members in self._patterns.groups]
        segments = []
        for label in reversed(chain):
            taken: list[int] = []
            for group in np.flatnonzero(self._patterns.counts[label.pattern]).tolist():
                amount = int(self._patterns.counts[label.pattern, group])
                taken += left[group][:amount]
                del left[group][:amount]
            segments.append((label.count, tuple(sorted(taken))))
        return tuple(segments)
