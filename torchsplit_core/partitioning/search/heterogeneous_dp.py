"""Pipelines on devices of different speeds, and pipelines of least latency.

Devices of one speed are a class. A state s says how many devices of each class are used; a stage on class c costs its
time times the factor f_c, and transfers. Along one topological order, with prefixes [0, i) as the ideals, or over all
ideals:

    throughput   F(s, I) = min over c, J ⊂ I of max(F(s − c, J), f_c·T(I − J) + entering + leaving)
    latency      F(s, I) = min over c, J ⊂ I of     F(s − c, J) + f_c·T(I − J) + entering

The best over all states at I = all is the optimum among intervals of the order, or among all pipelines. A device may
stay unused.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.search.ideal_dp import Ideals, enumerate_ideals
from torchsplit_core.partitioning.search.prefix_dp import cumulative_costs, narrow_positions, transfers_by_end

DevicePlacement = tuple[float, tuple[tuple[int, ...], ...], tuple[int, ...]]
"""Value, parts in order, and their devices (empty if all are equal)."""

_FULL_ORDER_BLOCKS = 1200  # above, an order is cut only at this many positions with few bytes across


@dataclass(frozen=True)
class _DeviceTransition:
    """`after` is the state `before` plus a device of a class with this factor."""

    before: int
    after: int
    factor: float


class DeviceStates:
    """The states of a request's devices, fewest devices first, and the transitions between them."""

    def __init__(self, graph: BlockGraph) -> None:
        devices = graph.request.devices
        time_factors = devices.time_factors
        factors = (1.0,) * devices.count if time_factors is None else time_factors
        self.has_time_factors = time_factors is not None
        self.classes = sorted(set(factors))
        self.members = [[d for d, f in enumerate(factors) if f == c] for c in self.classes]
        most = len(graph.blocks)
        counts = itertools.product(
            *(range(min(len(class_members), most) + 1) for class_members in self.members)
        )
        self.counts = sorted((c for c in counts if sum(c) <= most), key=lambda c: (sum(c), c))
        number = {c: i for i, c in enumerate(self.counts)}
        self.steps: list[_DeviceTransition] = []
        for state in self.counts:
            for c, factor in enumerate(self.classes):
                if state[c]:
                    less = (*state[:c], state[c] - 1, *state[c + 1 :])
                    self.steps.append(_DeviceTransition(number[less], number[state], factor))

    def devices(self, states: Sequence[int]) -> tuple[int, ...]:
        """The device of every stage, from the states after each; empty if all are equal."""
        if not self.has_time_factors:
            return ()
        chosen: list[int] = []
        used = (0,) * len(self.classes)
        for state in states:
            now = self.counts[state]
            c = next(c for c in range(len(now)) if now[c] != used[c])
            chosen.append(self.members[c][now[c] - 1])
            used = now
        return tuple(chosen)


class _PlacementTable:
    """F over states and positions (prefixes or ideals), with the way back."""

    def __init__(self, states: DeviceStates, positions: int, latency: bool) -> None:
        self.states, self.latency = states, latency
        self.best = np.full((len(states.counts), positions), np.inf)
        self.best[0, 0] = 0.0
        self.parent = np.zeros((len(states.counts), positions), dtype=np.int64)
        self.step = np.zeros((len(states.counts), positions), dtype=np.int64)

    def reach(
        self,
        position: int,
        smaller: np.ndarray,
        time_ms: np.ndarray,
        entering: np.ndarray,
        leaving: np.ndarray,
        most: float,
    ) -> None:
        """Compute a position from the `smaller` ones; drops values above `most`."""
        costs = {
            f: f * time_ms + (entering if self.latency else entering + leaving) for f in self.states.classes
        }
        for number, step in enumerate(self.states.steps):
            before = self.best[step.before, smaller]
            cost = costs[step.factor]
            value = before + cost if self.latency else np.maximum(before, cost)
            at = int(np.argmin(value))
            if value[at] < self.best[step.after, position] and value[at] <= most:
                self.best[step.after, position] = value[at]
                self.parent[step.after, position] = smaller[at]
                self.step[step.after, position] = number

    def ends(self, position: int) -> list[tuple[float, list[int], list[int]]]:
        """(value, positions from 0 on, states after each stage) of every state at a position, best first."""
        pipelines: list[tuple[float, list[int], list[int]]] = []
        for state in np.flatnonzero(np.isfinite(self.best[:, position])).tolist():
            at, now = position, state
            positions, passed = [position], []
            while at:
                passed.append(now)
                before = self.states.steps[self.step[now, at]].before
                at, now = int(self.parent[now, at]), before
                positions.append(at)
            pipelines.append((float(self.best[state, position]), positions[::-1], passed[::-1]))
        return sorted(pipelines)


def best_prefix_placements(
    graph: BlockGraph,
    order: Sequence[int],
    allowed: frozenset[int] | None = None,
    most_ms: float = float("inf"),
    deadline: float = float("inf"),
) -> tuple[DevicePlacement, ...]:
    """The best cuts of one order for every number of devices of each class, best first.

    `allowed`: numbers of blocks before a cut; None for all (of a long order those with few bytes across). Empty if
    nothing fits the memory or is at most `most_ms`, or if time is up.
    """
    n = len(order)
    states = DeviceStates(graph)
    table = _PlacementTable(states, n + 1, graph.request.objective == "latency")
    time_ms, memory = cumulative_costs(graph, order)
    limit = graph.request.devices.memory_bytes
    if allowed is None and n > _FULL_ORDER_BLOCKS:
        allowed = narrow_positions(graph, order, _FULL_ORDER_BLOCKS)
    starts = np.array([i for i in range(n) if not i or allowed is None or i in allowed])
    for end, entering, leaving in transfers_by_end(graph, order):
        if end < n and allowed is not None and end not in allowed:
            continue
        if time.monotonic() > deadline:
            return ()
        smaller = starts[: np.searchsorted(starts, end)]
        if limit is not None:
            smaller = smaller[memory[end] - memory[smaller] <= limit]
        if len(smaller):
            out = np.cumsum(leaving[::-1])[::-1]
            table.reach(
                end, smaller, time_ms[end] - time_ms[smaller], entering[smaller], out[smaller], most_ms
            )
    return tuple(
        (value, tuple(tuple(order[a:b]) for a, b in itertools.pairwise(positions)), states.devices(passed))
        for value, positions, passed in table.ends(n)
    )


def best_ideal_placements(
    graph: BlockGraph, max_ideals: int, most_ms: float, deadline: float
) -> tuple[bool, tuple[DevicePlacement, ...]]:
    """Search all ideals: (complete, the best for every number of devices of each class, best first).

    Complete and empty: nothing is at most `most_ms`. Incomplete: too many ideals, or out of time.
    """
    masks = enumerate_ideals(graph, max_ideals, deadline)
    if masks is None:
        return False, ()
    ideals, states = Ideals(graph, masks), DeviceStates(graph)
    table = _PlacementTable(states, len(masks), graph.request.objective == "latency")
    limit = graph.request.devices.memory_bytes
    for i in range(1, len(masks)):
        if i % 32 == 0 and time.monotonic() > deadline:
            return False, ()
        smaller = np.flatnonzero(((ideals.words[:i] & ~ideals.words[i]) == 0).all(axis=1))
        if limit is not None:
            smaller = smaller[ideals.memory[i] - ideals.memory[smaller] <= limit]
        if len(smaller):
            passed = ideals.time[i] - ideals.time[smaller]
            table.reach(i, smaller, passed, *ideals.transfers(i, smaller), most_ms)
    placements = tuple(
        (
            value,
            tuple(ideals.blocks_between(a, b) for a, b in itertools.pairwise(positions)),
            states.devices(passed),
        )
        for value, positions, passed in table.ends(len(masks) - 1)
    )
    return True, placements
