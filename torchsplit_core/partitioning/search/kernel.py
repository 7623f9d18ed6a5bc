"""The kernel of a block graph: an equivalent problem with far fewer blocks.

Blocks whose stage the windows determine are merged, one block a stage: no pipeline at or below the load of the windows
divides them. Sources of one block with the same readers are merged, since they always cross together. Cycles cannot
arise: a stage's known blocks are a difference of two ideals, and everything between two of them is known too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.partitioning.blocks.block_graph import Block, BlockGraph, Source, strong_components
from torchsplit_core.partitioning.search.cut_windows import CutWindows

Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Kernel:
    """`members[b]`: the blocks of the full graph that block b of `graph` replaces; `windows` are in its blocks."""

    graph: BlockGraph
    members: tuple[tuple[int, ...], ...]
    windows: CutWindows

    def expand(self, parts: Sequence[Sequence[int]]) -> Parts:
        """Parts of the kernel as parts of the full graph."""
        return tuple(self.blocks_of(part) for part in parts)

    def blocks_of(self, part: Iterable[int]) -> tuple[int, ...]:
        """The blocks of the full graph of a set of the kernel's."""
        return tuple(sorted(b for k in part for b in self.members[k]))

    def restrict(self, parts: Sequence[Sequence[int]]) -> Parts:
        """Parts of the full graph, at or below the load of the windows, as parts of the kernel."""
        home = {b: i for i, part in enumerate(parts) for b in part}
        reduced_parts: list[list[int]] = [[] for _ in parts]
        for k, members in enumerate(self.members):
            reduced_parts[home[members[0]]].append(k)
        return tuple(tuple(part) for part in reduced_parts)


def kernelize(graph: BlockGraph, windows: CutWindows) -> Kernel:
    """Merge what the windows determine. The blocks of the result are in topological order."""
    n = len(graph.blocks)
    inside = np.array(windows.inside, dtype=bool).reshape(-1, n)
    outside = np.array(windows.outside, dtype=bool).reshape(-1, n)
    known = (inside | outside).all(axis=0)
    stage = outside.sum(axis=0)
    home = list(range(n))
    first: dict[int, int] = {}
    for b in np.flatnonzero(known).tolist():
        home[b] = first.setdefault(int(stage[b]), b)
    numbers = {h: i for i, h in enumerate(dict.fromkeys(home))}
    home = [numbers[h] for h in home]
    order = strong_components(
        len(numbers), [(home[a], home[b]) for a, b in graph.edges if home[a] != home[b]]
    )
    home = [order[h] for h in home]
    members: list[list[int]] = [[] for _ in numbers]
    for b, h in enumerate(home):
        members[h].append(b)
    sources: dict[tuple[int, tuple[int, ...]], float] = {}
    for source in graph.sources:
        producer = home[source.block]
        readers = tuple(sorted({home[r] for r in source.readers} - {producer}))
        if readers:
            sources[producer, readers] = sources.get((producer, readers), 0.0) + source.transfer_ms
    heads = [block_members[0] for block_members in members]
    reduced_windows = replace(
        windows,
        inside=tuple(row[heads] for row in windows.inside),
        outside=tuple(row[heads] for row in windows.outside),
        ideals=tuple(row[heads] for row in windows.ideals),
    )
    return Kernel(
        BlockGraph(
            request=graph.request,
            blocks=tuple(
                _merge_blocks([graph.blocks[b] for b in block_members]) for block_members in members
            ),
            sources=tuple(Source(block, readers, cost) for (block, readers), cost in sources.items()),
        ),
        tuple(tuple(block_members) for block_members in members),
        reduced_windows,
    )


def _merge_blocks(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        tuple(sorted(i for block in blocks for i in block.nodes)),
        blocks[0].name,
        math.fsum(block.time_ms for block in blocks),
        sum(block.memory_bytes for block in blocks),
    )


def chain_order(graph: BlockGraph, ideals: Sequence[np.ndarray]) -> tuple[int, ...]:
    """A topological order that has every union of the first of these ideals as a prefix."""
    union = np.logical_or.accumulate(np.array([*ideals, np.ones(len(graph.blocks), dtype=bool)]), axis=0)
    return tuple(int(b) for b in np.lexsort((np.arange(len(graph.blocks)), union.argmax(axis=0))))
