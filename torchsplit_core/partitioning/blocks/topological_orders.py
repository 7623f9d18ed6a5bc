"""Topological orders of the blocks whose prefixes are tried as cuts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from torchsplit_core.partitioning.blocks.block_graph import BlockGraph


def topological_orders(graph: BlockGraph, count: int) -> Iterator[tuple[int, ...]]:
    """Up to `count` distinct orders, promising ones first; deterministic.

    Depth-first from the sinks keeps branches together; fewest live bytes first keeps cuts narrow; by index follows the
    execution order; random ones add variety.
    """
    n = len(graph.blocks)
    before: list[list[int]] = [[] for _ in range(n)]
    after: list[list[int]] = [[] for _ in range(n)]
    for a, b in graph.edges:
        before[b].append(a)
        after[a].append(b)
    weight = _ancestor_time(graph, before)
    seen: set[tuple[int, ...]] = set()

    def shuffled(seed: int) -> Callable[[int], float]:
        rng = random.Random(seed)
        keys = [rng.random() for _ in range(n)]
        return keys.__getitem__

    def emit_new(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if order not in seen and len(seen) < count:
            seen.add(order)
            yield order

    yield from emit_new(tuple(range(n)))
    yield from emit_new(_depth_first(before, after, lambda b: b))
    yield from emit_new(_narrow_first(graph, before, after))
    yield from emit_new(_depth_first(before, after, lambda b: -weight[b]))
    yield from emit_new(_depth_first(before, after, lambda b: weight[b]))
    yield from emit_new(_depth_first(before, after, lambda b: -b))
    for seed in range(2 * count):
        if len(seen) >= count:
            return
        yield from emit_new(_depth_first(before, after, shuffled(seed)))


def _ancestor_time(graph: BlockGraph, before: list[list[int]]) -> list[float]:
    """The longest path in time that ends in each block (blocks are numbered topologically)."""
    longest = [0.0] * len(before)
    for b, block in enumerate(graph.blocks):
        longest[b] = block.time_ms + max((longest[a] for a in before[b]), default=0.0)
    return longest


def _depth_first(
    before: list[list[int]], after: list[list[int]], key: Callable[[int], float]
) -> tuple[int, ...]:
    """Post-order from the sinks along what each block reads, smaller keys first."""
    order: list[int] = []
    done = [False] * len(before)
    stack = [
        (b, False) for b in sorted((b for b in range(len(before)) if not after[b]), key=key, reverse=True)
    ]
    while stack:
        b, expanded = stack.pop()
        if done[b]:
            continue
        if expanded:
            done[b] = True
            order.append(b)
        else:
            stack.append((b, True))
            stack.extend((a, False) for a in sorted(before[b], key=key, reverse=True) if not done[a])
    return tuple(order)


def _narrow_first(graph: BlockGraph, before: list[list[int]], after: list[list[int]]) -> tuple[int, ...]:
    """Always the ready block that adds least to the values still to be read."""
    n = len(before)
    left = [len(source.readers) for source in graph.sources]
    read: list[list[int]] = [[] for _ in range(n)]
    output_ms = [0.0] * n
    for i, source in enumerate(graph.sources):
        output_ms[source.block] += source.transfer_ms
        for reader in source.readers:
            read[reader].append(i)

    def growth(b: int) -> float:
        return output_ms[b] - sum(graph.sources[i].transfer_ms for i in read[b] if left[i] == 1)

    missing = [len(predecessors) for predecessors in before]
    ready = [(growth(b), b) for b in range(n) if not missing[b]]
    ready.sort()
    order: list[int] = []
    while ready:
        old, b = heappop(ready)
        now = growth(b)
        if now < old:  # others were read since: rank it again
            heappush(ready, (now, b))
            continue
        order.append(b)
        for i in read[b]:
            left[i] -= 1
        for reader in after[b]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, (growth(reader), reader))
    return tuple(order)
