"""The exact dynamic program over ideals: sets of blocks closed under predecessors.

A contiguous pipeline is a chain of ideals ∅ = I0 ⊂ I1 ⊂ … ⊂ Ik = all; stage j is I(j) − I(j−1):

    f(1, I) = load(I)      f(j + 1, I) = min over J ⊂ I of max(f(j, J), load(I − J))

(Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020.) With an incumbent
U, a state is dropped if it cannot lead below it: j stages hold T(J) and pay the transfer of its boundary B(J) once
leaving, the other k − j hold the rest and pay it once entering, so T(J) + w(B(J)) ≤ j·U and T − T(J) + w(B(J)) ≤ (k −
j)·U.

Blocks that cost no time do not multiply the ideals if their best place is known: without inputs and with one value,
beside the earliest reader; without readers and reading one value, beside its maker. Neither raises any load.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph

_MATRIX_CELLS = 60_000_000  # ideals times sources as small integers: 120 MB


@dataclass(frozen=True)
class IdealResult:
    """`complete`: the search was exhaustive, so nothing better than the incumbent and these exists.

    `cuts`: (largest load, parts), best first; empty if nothing is at or below the incumbent.
    """

    complete: bool
    ideals: int
    cuts: tuple[tuple[float, tuple[tuple[int, ...], ...]], ...]


def best_ideal_cuts(
    graph: BlockGraph,
    top_k: int,
    incumbent_ms: float,
    max_ideals: int,
    deadline: float,
    progress: Callable[[float], None] = lambda share: None,
    times_ms: tuple[np.ndarray, np.ndarray] | None = None,
) -> IdealResult:
    """Search all ideals, if at most `max_ideals`, until the deadline (time.monotonic).

    `times_ms`: least and most time of the first j + 1 stages of any pipeline at or below the incumbent.
    """
    masks = enumerate_ideals(graph, max_ideals, deadline)
    if masks is None:
        return IdealResult(False, max_ideals, ())
    if len(masks) * max(len(graph.sources), 1) > _MATRIX_CELLS:
        return IdealResult(False, len(masks), ())
    # No load exceeds all time plus every transfer at both ends: a finite replacement for "no incumbent".
    most = graph.total_ms + 2 * sum(source.transfer_ms for source in graph.sources) + 1.0
    return _search(graph, masks, top_k, min(incumbent_ms * (1 + 1e-9), most), deadline, progress, times_ms)


def _attached_blocks(graph: BlockGraph) -> tuple[list[int], set[int]]:
    """For every block the bits that enter an ideal with it, and the blocks that are only added with others."""
    n = len(graph.blocks)
    limit = graph.request.devices.memory_bytes
    slack = limit is None or sum(block.memory_bytes for block in graph.blocks) <= limit
    made: list[list[int]] = [[] for _ in range(n)]
    reads: list[list[int]] = [[] for _ in range(n)]
    for s, source in enumerate(graph.sources):
        made[source.block].append(s)
        for reader in source.readers:
            reads[reader].append(s)
    costless = [block.time_ms == 0 and (slack or block.memory_bytes == 0) for block in graph.blocks]
    sinks = {b for b in range(n) if costless[b] and not made[b] and len(reads[b]) == 1}
    heads = {
        b
        for b in range(n)
        if costless[b]
        and not reads[b]
        and len(made[b]) == 1
        and sinks.isdisjoint(graph.sources[made[b][0]].readers)
    }
    loose = {b for b in range(n) if costless[b] and not made[b] and not reads[b]}
    if len(loose) == n:
        loose.discard(0)
    with_it = [1 << b for b in range(n)]
    for b in sinks:
        with_it[graph.sources[reads[b][0]].block] |= 1 << b
    for b in heads:
        for reader in graph.sources[made[b][0]].readers:
            with_it[reader] |= 1 << b
    ordinary = next(b for b in range(n) if b not in sinks | heads | loose)
    for b in loose:
        with_it[ordinary] |= 1 << b
    return with_it, sinks | heads | loose


def enumerate_ideals(graph: BlockGraph, max_ideals: int, deadline: float) -> list[int] | None:
    """All ideals as bit masks, the empty one first; None if there are too many or time is up."""
    n = len(graph.blocks)
    with_it, carried = _attached_blocks(graph)
    need = [0] * n
    after: list[list[int]] = [[] for _ in range(n)]
    for a, b in graph.edges:
        if a not in carried and b not in carried:
            need[b] |= 1 << a
            after[a].append(b)
    starts = tuple(b for b in range(n) if b not in carried and not need[b])
    seen = {0}
    level: list[tuple[int, tuple[int, ...]]] = [(0, starts)]
    masks = [0]
    while level:
        below: list[tuple[int, tuple[int, ...]]] = []
        for mask, ready in level:
            for b in ready:
                grown = mask | with_it[b]
                if grown not in seen:
                    seen.add(grown)
                    masks.append(grown)
                    if len(masks) > max_ideals:
                        return None
                    fresh = tuple(c for c in after[b] if need[c] & ~grown == 0)
                    below.append((grown, tuple(c for c in ready if c != b) + fresh))
        if time.monotonic() > deadline:
            return None
        level = below
    return masks


class Ideals:
    """Ideals sorted by their time, with arrays for the load of the difference of two of them."""

    def __init__(self, graph: BlockGraph, masks: list[int]) -> None:
        n, count = len(graph.blocks), len(masks)
        words = (n + 63) // 64
        raw = b"".join(mask.to_bytes(words * 8, "little") for mask in masks)
        packed = np.frombuffer(raw, dtype=np.uint8).reshape(count, words * 8)
        member = np.unpackbits(packed, axis=1, bitorder="little")[:, :n].astype(bool)
        time_ms = member @ np.array([block.time_ms for block in graph.blocks])
        order = np.lexsort((member.sum(axis=1), time_ms))  # subsets come first among equal times
        self.masks = [masks[i] for i in order]
        self.member = member[order]
        self.words = packed[order].view(np.uint64)
        self.time = time_ms[order]
        self.memory = np.array([block.memory_bytes for block in graph.blocks], dtype=np.int64)
        self.memory = self.member @ self.memory
        sources = [source for source in graph.sources if source.transfer_ms > 0]
        self.cost = np.array([source.transfer_ms for source in sources] + [0.0])
        self.home = np.array([source.block for source in sources], dtype=np.int64)
        self.read = np.zeros((count, len(sources) + 1), dtype=np.uint16)
        for s, source in enumerate(sources):
            self.read[:, s] = self.member[:, list(source.readers)].sum(axis=1)
        degree = np.array([len(source.readers) for source in sources] + [0])
        live = np.zeros((count, len(sources) + 1), dtype=bool)
        live[:, :-1] = self.member[:, self.home] & (self.read[:, :-1] < degree[:-1])
        self.boundary = live @ self.cost
        self.live = [np.flatnonzero(row) for row in live]
        width = max((len(live_sources) for live_sources in self.live), default=0)
        self.live_padded = np.full((count, width), len(sources), dtype=np.int64)
        for i, live_sources in enumerate(self.live):
            self.live_padded[i, : len(live_sources)] = live_sources
        self.live_read = np.take_along_axis(self.read, self.live_padded, axis=1)

    def blocks_between(self, smaller: int, larger: int) -> tuple[int, ...]:
        """The blocks of the larger ideal that are not in the smaller."""
        return _bits(self.masks[larger] & ~self.masks[smaller])

    def loads(self, i: int, smaller: np.ndarray) -> np.ndarray:
        """Load of the stage I(i) − I(j) for every j of `smaller`, all subsets of I(i)."""
        entering, leaving = self.transfers(i, smaller)
        load: np.ndarray = self.time[i] - self.time[smaller] + entering + leaving
        return load

    def transfers(self, i: int, smaller: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Transfers into and out of each stage of `loads`, in ms."""
        sources = self.live_padded[smaller]
        entering = (self.cost[sources] * (self.read[i][sources] > self.live_read[smaller])).sum(axis=1)
        live_sources = self.live[i]
        leaving = (
            self.boundary[i] - self.member[np.ix_(smaller, self.home[live_sources])] @ self.cost[live_sources]
        )
        return entering, leaving


def _search(
    graph: BlockGraph,
    masks: list[int],
    top_k: int,
    incumbent: float,
    deadline: float,
    progress: Callable[[float], None],
    times_ms: tuple[np.ndarray, np.ndarray] | None,
) -> IdealResult:
    ideals = Ideals(graph, masks)
    full = (1 << len(graph.blocks)) - 1
    last = ideals.masks.index(full)
    total = ideals.time[last]
    limit = graph.request.devices.memory_bytes
    k = min(graph.request.devices.count, len(graph.blocks))
    count = len(masks)
    best = ideals.time + ideals.boundary
    if limit is not None:
        best = np.where(ideals.memory <= limit, best, np.inf)
    best[ideals.masks.index(0)] = np.inf
    parents: list[np.ndarray] = [np.full(count, -1)]
    ends: list[tuple[float, int, int]] = []
    if best[last] <= incumbent:
        ends.append((float(best[last]), 1, -1))
    slack = 1e-9 * max(float(total), 1e-300)
    for j in range(1, k):
        if times_ms is not None:
            low, high = times_ms[0][j - 1] - slack, times_ms[1][j - 1] + slack
            best = np.where((ideals.time >= low) & (ideals.time <= high), best, np.inf)
        rest = total - ideals.time + ideals.boundary
        active = np.flatnonzero((best <= incumbent) & (rest <= (k - j) * incumbent))
        target = (ideals.time + ideals.boundary <= (j + 1) * incumbent) & (rest <= (k - j - 1) * incumbent)
        target[last] = True
        value = np.full(count, np.inf)
        parent = np.full(count, -1)
        active_time = ideals.time[active]
        for step, i in enumerate(np.flatnonzero(target)):
            if step % 64 == 0:
                if time.monotonic() > deadline:
                    return IdealResult(False, count, _reconstruct_cuts(graph, ideals, parents, ends, top_k))
                progress((j - 1 + step / count) / (k - 1))
            first = np.searchsorted(active_time, ideals.time[i] - incumbent - slack)
            end = np.searchsorted(active_time, ideals.time[i] + slack, side="right")
            smaller = active[first:end]
            inside = ((ideals.words[smaller] & ~ideals.words[i]) == 0).all(axis=1) & (smaller != i)
            smaller = smaller[inside]
            if limit is not None:
                smaller = smaller[ideals.memory[i] - ideals.memory[smaller] <= limit]
            if not len(smaller):
                continue
            reached = np.maximum(best[smaller], ideals.loads(int(i), smaller))
            at = int(np.argmin(reached))
            value[i], parent[i] = reached[at], smaller[at]
            if i == last:
                good = [int(x) for x in np.argsort(reached, kind="stable")[:top_k] if reached[x] <= incumbent]
                ends.extend((float(reached[x]), j + 1, int(smaller[x])) for x in good)
        best = value
        parents.append(parent)
    return IdealResult(True, count, _reconstruct_cuts(graph, ideals, parents, ends, top_k))


def _reconstruct_cuts(
    graph: BlockGraph,
    ideals: Ideals,
    parents: list[np.ndarray],
    ends: list[tuple[float, int, int]],
    top_k: int,
) -> tuple[tuple[float, tuple[tuple[int, ...], ...]], ...]:
    """The stages of the best ends, traced back along the parents."""
    cuts: list[tuple[float, tuple[tuple[int, ...], ...]]] = []
    for value, stages, before in sorted(ends)[:top_k]:
        chain = [(1 << len(graph.blocks)) - 1]
        at = before
        for j in range(stages - 1, 0, -1):
            chain.append(ideals.masks[at])
            at = int(parents[j - 1][at])
        chain.append(0)
        chain.reverse()
        parts = tuple(_bits(larger & ~smaller) for smaller, larger in itertools.pairwise(chain))
        cuts.append((value, parts))
    return tuple(cuts)


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)
