"""The exact dynamic program over all prefixes of one topological order.

With blocks numbered along the order, T(i) the time of the first i, and a stage [a, i):

    load(a, i) = T(i) − T(a)
               + Σ transfer of values made before a and read in [a, i)
               + Σ transfer of values made in [a, i) and read at i or later
    F(0, 0) = 0      F(j, i) = min over a < i of max(F(j − 1, a), load(a, i))

F(j, n) is the least largest load of j stages that are intervals of this order. The load of
all starts a is kept for one end i at a time, so memory is O(k·n) and time O(n·(n·k + edges)).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph

_FULL_ORDER_BLOCKS = 20_000  # blocks: above, the time of one order would be minutes
_CUT_POSITIONS = 2_000


def best_prefix_cuts(
    graph: BlockGraph,
    order: Sequence[int],
    top_k: int,
    allowed: frozenset[int] | None = None,
    at_most_ms: float = float("inf"),
) -> tuple[tuple[float, tuple[tuple[int, ...], ...]], ...]:
    """(largest load, parts) of the best cuts of this order, best first: one for each last cut and number of stages.

    `allowed`: positions (numbers of blocks before the cut) of cuts; None for all (of a very long order those with few
    bytes across). Ignores stages heavier than `at_most_ms`. Empty if nothing fits.
    """
    n, k = len(order), graph.request.devices.count
    k = min(k, n)
    if allowed is None and n > _FULL_ORDER_BLOCKS:
        allowed = narrow_positions(graph, order, _CUT_POSITIONS)
    limit = graph.request.devices.memory_bytes
    time, memory = cumulative_costs(graph, order)
    best = np.full((k + 1, n + 1), np.inf)
    best[0, 0] = 0.0
    parent = np.zeros((k + 1, n + 1), dtype=np.int64)
    final = np.empty((k, 0))
    first = 0
    for end, entering, leaving in transfers_by_end(graph, order):
        if end < n and allowed is not None and end not in allowed:
            continue
        first = (
            int(np.searchsorted(time[:end], time[end] - at_most_ms * (1 + 1e-9)))
            if at_most_ms < np.inf
            else 0
        )
        load = time[end] - time[first:end] + entering[first:end] + np.cumsum(leaving[first:end][::-1])[::-1]
        if limit is not None:
            load = np.where(memory[end] - memory[first:end] <= limit, load, np.inf)
        value = np.maximum(best[:-1, first:end], load)
        at = np.argmin(value, axis=1)
        best[1:, end] = value[np.arange(k), at]
        parent[1:, end] = at + first
        final = value
    ranked = sorted(
        (float(final[j, a]), j + 1, a + first)
        for j in range(k)
        for a in np.argsort(final[j])[:top_k]
        if np.isfinite(final[j, a])
    )
    return tuple((value, _parts(order, parent, stages, start)) for value, stages, start in ranked[:top_k])


def transfers_by_end(graph: BlockGraph, order: Sequence[int]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For every end, in order: (end, entering, leaving), which the next step overwrites.

    entering[a]: transfers in ms of what a stage [a, end) reads from before a. The sum of leaving[a:end]: those of what
    it makes for end or later.
    """
    n = len(order)
    position = {b: i for i, b in enumerate(order)}
    made: list[list[int]] = [[] for _ in range(n)]
    reads: list[list[int]] = [[] for _ in range(n)]
    origin = [position[source.block] for source in graph.sources]
    last = [max(position[r] for r in source.readers) for source in graph.sources]
    cost = [source.transfer_ms for source in graph.sources]
    for s, source in enumerate(graph.sources):
        made[origin[s]].append(s)
        for reader in source.readers:
            reads[position[reader]].append(s)
    latest = list(origin)  # the latest reader so far, the maker before any
    entering = np.zeros(n)
    leaving = np.zeros(n)
    for q in range(n):
        for s in reads[q]:
            entering[latest[s] + 1 : q + 1] += cost[s]
            latest[s] = q
            if last[s] == q:
                leaving[origin[s]] -= cost[s]
        for s in made[q]:
            leaving[q] += cost[s]
        yield q + 1, entering[: q + 1], leaving[: q + 1]


def cumulative_costs(graph: BlockGraph, order: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Time and memory of the first i blocks, for i = 0 … n."""
    time = np.concatenate(([0.0], np.cumsum([graph.blocks[b].time_ms for b in order])))
    # Python integers: sums of bytes may exceed what a double represents exactly.
    memory = np.concatenate(([0], np.cumsum([graph.blocks[b].memory_bytes for b in order], dtype=np.int64)))
    return time, memory


def narrow_positions(graph: BlockGraph, order: Sequence[int], count: int) -> frozenset[int]:
    """`count` positions for cuts: of every few neighbours in the order the one with the least transfer across."""
    across = np.zeros(len(order) + 1)
    at = {b: i for i, b in enumerate(order)}
    for source in graph.sources:
        across[at[source.block] + 1] += source.transfer_ms
        across[max(at[r] for r in source.readers) + 1] -= source.transfer_ms
    across = np.cumsum(across)[1:-1]
    groups = np.array_split(np.arange(len(across)), max(min(count, len(across)), 1))
    return frozenset(
        int(positions[np.argmin(across[positions])]) + 1 for positions in groups if len(positions)
    )


def _parts(order: Sequence[int], parent: np.ndarray, stages: int, start: int) -> tuple[tuple[int, ...], ...]:
    """The stages whose last one begins at `start`."""
    cuts = [len(order), start]
    for j in range(stages - 1, 0, -1):
        cuts.append(int(parent[j, cuts[-1]]))
    cuts.reverse()
    return tuple(tuple(order[a:b]) for a, b in itertools.pairwise(cuts))
