"""The position of every region in one order of the values, with integers and in linear time.

Labels are those of `FlowGraph`: idom[v] < v < ipdom[v]. A chain (see `regions`) has the label of its last element, a
link (p, v] that of its end v.

Which link contains v. An element of a chain but its first is in the link that it ends. Any other value v has d =
idom[v], and every region that contains v starts at d or contains d:

- d has a next element e: the link (d, e] contains v. A path from d to EXIT passes e; if e were always before v on
  it, then e and not d would be the immediate dominator of v.
- d is the last element of its chain, or in none: a region that contains v extends past d, so it is not of that chain,
  and is the innermost one that contains the first element of the chain.

The same link contains that chain as a whole.

The order. A link has its values and its chains by ascending label; a chain, which reads only its first element and
outputs only its last, takes the position of its last element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.graph.flow import FlowGraph, Labels


@dataclass(frozen=True)
class RegionLayout:
    """All regions, one row in each array, parents before children, siblings in order.

    `order`: the labels of all values, topologically; row i has `count[i]` of them from `first[i]` on. `start`, `end`:
    the labels of its first and last element. `parent`: a row, -1 for row 0, the whole graph, which has depth 0.
    `after`: for every label the next one in its chain, or -1.
    """

    order: list[int]
    start: list[int]
    end: list[int]
    is_chain: list[bool]
    first: list[int]
    count: list[int]
    parent: list[int]
    depth: list[int]
    after: list[int]


def layout_regions(flow: FlowGraph) -> RegionLayout:
    """Every chain and link; a chain of two elements and its link are one row, an empty link is none."""
    idom, ipdom = np.array(flow.dominators()), np.array(flow.post_dominators())
    labels = np.arange(len(idom))
    linked = (idom[ipdom] == labels) & (ipdom != labels)
    after = np.where(linked, ipdom, -1)
    before = np.full(len(idom), -1)
    before[ipdom[linked]] = labels[linked]
    around, held, up_to, offset = _measure_links(idom.tolist(), before.tolist(), after.tolist())
    begin, position, chain = _position_links(before.tolist(), after.tolist(), around, up_to, offset)
    return _rows(before, after, *map(np.array, (around, held, up_to, begin, position, chain)))


def _measure_links(
    idom: list[int], before: list[int], after: list[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """In ascending order, so that everything within a link is known at its end:

    the link around each value's chain (-1 for that of ENTRY); how many values each link contains; how many each chain
    contains up to and including an element; the offset of a chain, or a first element, within its link.
    """
    last = len(idom) - 1
    around, held, up_to, offset = ([filler] * len(idom) for filler in (-1, 0, 0, 0))
    for v in range(1, last + 1):
        previous = before[v]
        if previous < 0:
            d = idom[v]
            link = around[v] = after[d] if after[d] >= 0 else around[d]
            offset[v] = held[link]
            held[link] += 1
            continue
        link = around[v] = around[previous]
        if v < last:  # EXIT is no value
            held[v] += 1
        up_to[v] = up_to[previous] + held[v]
        if after[v] < 0 and link >= 0:
            offset[v] = held[link]
            held[link] += up_to[v]
    return around, held, up_to, offset


def _position_links(
    before: list[int], after: list[int], around: list[int], up_to: list[int], offset: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """In descending order, outer links before inner ones: the position where each link begins, that of each value, and
    the chain of each element, including the first."""
    begin, position, base, chain = ([-1] * len(before) for _ in range(4))
    for v in range(len(before) - 1, -1, -1):
        if after[v] >= 0:
            base[v], chain[v] = base[after[v]], chain[after[v]]
        elif before[v] >= 0:
            base[v], chain[v] = (begin[around[v]] if around[v] >= 0 else 0) + offset[v], v
        if before[v] >= 0:
            begin[v] = base[v] + up_to[before[v]]
            position[v] = base[v] + up_to[v] - 1
        elif around[v] >= 0:
            position[v] = begin[around[v]] + offset[v]
    return begin, position, chain


def _rows(
    before: Labels, after: Labels, around: Labels, held: Labels, up_to: Labels,
    begin: Labels, position: Labels, chain: Labels,
) -> RegionLayout:  # fmt: skip
    """Sort by where regions begin; only a chain and its first link can begin at the same position."""
    size = len(before)
    heads = np.flatnonzero((before < 0) & (after >= 0))
    tops = chain[heads]
    pairs = tops[after[heads] == tops]  # chains of two elements
    is_link = (before >= 0) & (held > 0)
    is_link[pairs] = False
    links = np.flatnonzero(is_link)
    slots = np.full(2 * size, -1)
    slots[2 * begin[after[heads]]] = tops
    slots[2 * begin[links] + 1] = links
    taken = np.flatnonzero(slots >= 0)
    end = slots[taken]
    is_chain = taken % 2 == 0
    row_of_chain, row_of_link, head = (np.full(size, -1) for _ in range(3))
    row_of_chain[end[is_chain]] = np.flatnonzero(is_chain)
    row_of_link[end[~is_chain]] = np.flatnonzero(~is_chain)
    row_of_link[pairs] = row_of_chain[pairs]
    head[tops] = heads
    parent = np.where(is_chain, row_of_link[around[end]], row_of_chain[chain[end]])
    parent[0] = -1
    order = np.zeros(size - 2, np.int64)
    order[position[1:-1]] = np.arange(1, size - 1)
    return RegionLayout(
        order=order.tolist(),
        start=np.where(is_chain, head[end], before[end]).tolist(),
        end=end.tolist(),
        is_chain=is_chain.tolist(),
        first=(taken // 2).tolist(),
        count=np.where(is_chain, up_to[end], held[end]).tolist(),
        parent=parent.tolist(),
        depth=_depths(parent.tolist()),
        after=after.tolist(),
    )


def _depths(parent: list[int]) -> list[int]:
    depth: list[int] = []
    for above in parent:
        depth.append(depth[above] + 1 if above >= 0 else 0)
    return depth
