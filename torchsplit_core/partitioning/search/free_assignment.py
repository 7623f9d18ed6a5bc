"""Assignment of blocks to devices without an order of stages.

Greedy starts and a local search give a good assignment; for few blocks a depth-first search proves the best. It prunes
by the loads of the assigned blocks, which never fall: a value between two assigned blocks on different devices stays
between devices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph
from torchsplit_core.partitioning.candidates import stage_loads

EXACT_BLOCKS = 40  # above, the search tree exceeds any time limit

Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class AssignmentResult:
    """`complete`: every assignment was searched or pruned. `assignments`: (largest load, parts)."""

    complete: bool
    assignments: tuple[tuple[float, Parts], ...]


def best_free_assignment(graph: BlockGraph, starts: Sequence[Parts], deadline: float) -> AssignmentResult:
    """Improve the starts and a greedy one, then prove the best if the blocks are few."""
    k = min(graph.request.devices.count, len(graph.blocks))
    value_of_parts: dict[Parts, float] = {}
    for start in (*starts, *_greedy(graph, k)):
        better = _improve(graph, start, k, deadline)
        value_of_parts[better] = max(stage_loads(graph, better))
    if len(graph.blocks) > EXACT_BLOCKS:
        return AssignmentResult(False, tuple((value, parts) for parts, value in value_of_parts.items()))
    search = _BranchAndBound(graph, k, min(value_of_parts.values(), default=float("inf")), deadline)
    complete = search.run()
    if search.best is not None:
        value_of_parts[search.best] = max(stage_loads(graph, search.best))
    return AssignmentResult(complete, tuple((value, parts) for parts, value in value_of_parts.items()))


def _canonical_parts(home: Sequence[int], k: int) -> Parts:
    parts: list[list[int]] = [[] for _ in range(k)]
    for b, d in enumerate(home):
        parts[d].append(b)
    return tuple(sorted(tuple(part) for part in parts if part))


def _greedy(graph: BlockGraph, k: int) -> list[Parts]:
    """Longest block first to the device with the least time that has room; then largest memory first."""
    limit = graph.request.devices.memory_bytes
    starts: list[Parts] = []
    for by_memory in (False, True):
        blocks = graph.blocks
        order = sorted(
            range(len(blocks)), key=lambda b: -blocks[b].memory_bytes if by_memory else -blocks[b].time_ms
        )
        home = [0] * len(blocks)
        time_ms, memory = [0.0] * k, [0] * k
        for b in order:
            room = [d for d in range(k) if limit is None or memory[d] + blocks[b].memory_bytes <= limit]
            if not room:
                break
            d = min(room, key=lambda d: (memory[d] if by_memory else time_ms[d], d))
            home[b] = d
            time_ms[d] += blocks[b].time_ms
            memory[d] += blocks[b].memory_bytes
        else:
            starts.append(_canonical_parts(home, k))
    return starts


class _Loads:
    """Loads and memory of an assignment, updated as blocks move."""

    def __init__(self, graph: BlockGraph, start: Parts, k: int) -> None:
        self.graph = graph
        self.home = [0] * len(graph.blocks)
        for d, part in enumerate(start):
            for b in part:
                self.home[b] = d
        self.readers = [[0] * k for _ in graph.sources]
        self.touched: list[list[int]] = [[] for _ in graph.blocks]
        for s, source in enumerate(graph.sources):
            self.touched[source.block].append(s)
            for reader in source.readers:
                self.touched[reader].append(s)
                self.readers[s][self.home[reader]] += 1
        self.loads, self.memory = [0.0] * k, [0] * k
        for b, block in enumerate(graph.blocks):
            self.loads[self.home[b]] += block.time_ms
            self.memory[self.home[b]] += block.memory_bytes
        for s in range(len(graph.sources)):
            self._charge_transfer(s, 1)

    def _charge_transfer(self, s: int, sign: int) -> None:
        source = self.graph.sources[s]
        producer = self.home[source.block]
        consumers = [d for d, count in enumerate(self.readers[s]) if count and d != producer]
        for d in consumers:
            self.loads[d] += sign * source.transfer_ms
        if consumers:
            self.loads[producer] += sign * source.transfer_ms

    def move(self, b: int, target: int) -> None:
        """Move a block to another device."""
        origin, block = self.home[b], self.graph.blocks[b]
        for s in self.touched[b]:
            self._charge_transfer(s, -1)
            if self.graph.sources[s].block != b:
                self.readers[s][origin] -= 1
                self.readers[s][target] += 1
        self.home[b] = target
        for s in self.touched[b]:
            self._charge_transfer(s, 1)
        self.loads[origin] -= block.time_ms
        self.loads[target] += block.time_ms
        self.memory[origin] -= block.memory_bytes
        self.memory[target] += block.memory_bytes

    def score(self) -> tuple[float, ...]:
        """The loads, largest first, without the rounding errors of many moves."""
        return tuple(sorted((round(load, 9) for load in self.loads), reverse=True))


def _improve(graph: BlockGraph, start: Parts, k: int, deadline: float) -> Parts:
    """Move single blocks off a heaviest device while that lowers the sorted loads."""
    limit = graph.request.devices.memory_bytes
    state = _Loads(graph, start, k)
    now = state.score()
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        heaviest = state.loads.index(max(state.loads))
        for b in [b for b, d in enumerate(state.home) if d == heaviest]:
            for d in range(k):
                origin = state.home[b]
                if d == origin or (
                    limit is not None and state.memory[d] + graph.blocks[b].memory_bytes > limit
                ):
                    continue
                state.move(b, d)
                after = state.score()
                if after < now:
                    now, improved = after, True
                else:
                    state.move(b, origin)
            if time.monotonic() > deadline:
                break
    return _canonical_parts(state.home, k)


class _BranchAndBound:
    """Depth-first over blocks; a new device is only the next free index, since devices are equal."""

    def __init__(self, graph: BlockGraph, k: int, incumbent: float, deadline: float) -> None:
        self.graph, self.k, self.deadline = graph, k, deadline
        self.limit = graph.request.devices.memory_bytes
        self.value = incumbent
        self.best: Parts | None = None
        self.order = sorted(range(len(graph.blocks)), key=lambda b: -graph.blocks[b].time_ms)
        self.home = [-1] * len(graph.blocks)
        self.memory = [0] * k
        self.loads = [0.0] * k
        self.readers = [[0] * k for _ in graph.sources]
        self.made: list[list[int]] = [[] for _ in graph.blocks]
        self.reads: list[list[int]] = [[] for _ in graph.blocks]
        for s, source in enumerate(graph.sources):
            self.made[source.block].append(s)
            for reader in source.readers:
                self.reads[reader].append(s)

    def run(self) -> bool:
        """Search; False if time ran out."""
        return self._branch(0, 0)

    def _branch(self, depth: int, used: int) -> bool:
        if time.monotonic() > self.deadline:
            return False
        if depth == len(self.order):
            self.value = max(self.loads)
            self.best = _canonical_parts(self.home, self.k)
            return True
        b = self.order[depth]
        block = self.graph.blocks[b]
        for d in range(min(used + 1, self.k)):
            if self.limit is not None and self.memory[d] + block.memory_bytes > self.limit:
                continue
            saved = list(self.loads)
            self.memory[d] += block.memory_bytes
            self._assign(b, d)
            in_time = True
            if max(self.loads) < self.value * (1 - 1e-12):
                in_time = self._branch(depth + 1, max(used, d + 1))
            self.home[b] = -1
            for s in self.reads[b]:
                self.readers[s][d] -= 1
            self.memory[d] -= block.memory_bytes
            self.loads = saved
            if not in_time:
                return False
        return True

    def _assign(self, b: int, d: int) -> None:
        self.home[b] = d
        self.loads[d] += self.graph.blocks[b].time_ms
        for s in self.made[b]:
            cost = self.graph.sources[s].transfer_ms
            away = [e for e in range(self.k) if e != d and self.readers[s][e]]
            for e in away:
                self.loads[e] += cost
            if away:
                self.loads[d] += cost
        for s in self.reads[b]:
            self.readers[s][d] += 1
            origin = self.home[self.graph.sources[s].block]
            if origin >= 0 and origin != d and self.readers[s][d] == 1:
                cost = self.graph.sources[s].transfer_ms
                self.loads[d] += cost
                if sum(1 for e in range(self.k) if e != origin and self.readers[s][e]) == 1:
                    self.loads[origin] += cost
