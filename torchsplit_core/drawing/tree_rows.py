"""Dominator trees as indented rows from top to bottom, and region trees as an icicle.

The dominator tree of a deep model is one long chain, which as an ordinary tree would grow to the right. In this
outline the chain stays vertical: if b is the immediate post-dominator of a and a the immediate dominator of b (a link
of a region chain), b is below a at the same indent; the other values that a immediately dominates are between them,
indented.

    input
    embeddings
      query
      key
      value
      attention          indented: between embeddings and its link
    add                  the next link of the chain
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchsplit_core.graph import ENTRY, EXIT, DominanceInformation, RegionTree


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A value of a tree and its indent."""

    name: str
    indent: int


def dominator_rows(dominance: DominanceInformation, *, post: bool = False) -> tuple[TreeRow, ...]:
    """Every value of the dominator tree (or the post-dominator tree), parents before children."""
    tree = dominance.post_dominator_tree if post else dominance.dominator_tree
    root, end = (EXIT, ENTRY) if post else (ENTRY, EXIT)
    rows: list[TreeRow] = []
    # ENTRY and EXIT are not values, so the children of the root have indent 0.
    stack: list[tuple[str, int]] = [(root, 0)]
    while stack:
        name, indent = stack.pop()
        if name not in (ENTRY, EXIT):
            rows.append(TreeRow(name, indent))
        spine = _next_in_chain(dominance, name, post=post)
        inner = indent if name == root else indent + 1
        children = [child for child in tree.get(name, ()) if child not in (spine, end)]
        if spine is not None and spine != end:
            stack.append((spine, indent))
        stack.extend((child, inner) for child in reversed(children))
    return tuple(rows)


def _next_in_chain(dominance: DominanceInformation, name: str, *, post: bool) -> str | None:
    """The next value of the chain; None at its end."""
    if post:
        after = dominance.immediate_dominator(name)
        return after if after is not None and dominance.immediate_post_dominator(after) == name else None
    after = dominance.immediate_post_dominator(name)
    return after if after is not None and dominance.immediate_dominator(after) == name else None


@dataclass(frozen=True, slots=True)
class IciclePatch:
    """A region in an icicle: column `depth`, from `low` to `high` (parts of the whole, 0 to 1); `region`: its index."""

    region: int
    depth: int
    low: float
    high: float


def icicle(tree: RegionTree, weights: Mapping[str, float], most: int = 4000) -> tuple[IciclePatch, ...]:
    """The `most` largest regions of two values or more, sized by the sum of their values' weights.

    Depth counts only regions of two values or more. If all weights are 0, every value has weight 1.
    """
    total = sum(weights.get(name, 0.0) for name in tree.order)
    flat = total <= 0
    sums = [0.0]
    for name in tree.order:
        sums.append(sums[-1] + (1.0 if flat else weights.get(name, 0.0)))
    whole = sums[-1] or 1.0
    patches: list[IciclePatch] = []
    depth: dict[int, int] = {}
    for i, region in enumerate(tree.regions):
        if region.count < 2:
            continue
        above = -1 if region.parent is None else depth[region.parent]
        depth[i] = above + 1
        low, high = sums[region.first] / whole, sums[region.first + region.count] / whole
        patches.append(IciclePatch(i, depth[i], low, high))
    if len(patches) > most:
        patches = sorted(patches, key=lambda patch: (patch.low - patch.high, patch.depth))[:most]
    return tuple(sorted(patches, key=lambda patch: (patch.depth, patch.low)))
