"""Single-entry single-exit regions of a prepared graph, as one canonical tree.

Definition. For values a and b, (a, b] is a region when a strictly dominates b and b
post-dominates a. It holds every value that a strictly dominates and b post-dominates. Then
the value of a is all that enters it, the value of b all that leaves it:

        a ──┬─> x ──┐
            └─> y ──┴─> b ──> …          (a, b] = {x, y, b}

Which pairs are regions. "(a, b] is a region" orders values into disjoint chains
c0, c1, …, cm: every pair of one chain is a region, no pair across chains is, and c[i+1] is
the immediate post-dominator of c[i] while c[i] is the immediate dominator of c[i+1].

The tree. Every chain gives the region (c0, cm], and below it the links (c[i], c[i+1]]; the
chains inside a link hang below that link. These regions are laminar: two of them are nested
or disjoint. ENTRY and EXIT take part, so the root is (ENTRY, EXIT], the whole model, and
the inner elements of its chain are the whole-model cut points.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.graph.dominance import ENTRY, EXIT, DominanceInformation
from torchsplit_core.graph.prepare import PreparedGraph
from torchsplit_core.values import InternalFault


@dataclass(frozen=True, slots=True)
class Region:
    """(start, end] with the ids it holds, in topological order. `parent` indexes `RegionTree.regions`.

    A chain's `elements` run from start to end; a link has just those two.
    """

    start: str
    end: str
    kind: Literal["chain", "link"]
    elements: tuple[str, ...]
    ids: tuple[str, ...]
    parent: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class RegionTree:
    """All canonical regions, parents before children; the first is the whole graph.

    `cut_points` are the values after which the whole graph falls into a before and an
    after with only that value between them, in pipeline order.
    """

    ids: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    regions: tuple[Region, ...]
    cut_points: tuple[str, ...]

    def children(self, index: int) -> tuple[int, ...]:
        """Indices of the regions directly below one."""
        return tuple(i for i, region in enumerate(self.regions) if region.parent == index)

    def before(self, cut_point: str) -> frozenset[str]:
        """All that a cut after this value leaves on the first side, the value included."""
        readers: dict[str, list[str]] = {}
        for source, target in self.edges:
            readers.setdefault(target, []).append(source)
        seen = {cut_point}
        stack = [cut_point]
        while stack:
            for name in readers.get(stack.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    stack.append(name)
        return frozenset(seen)

    def verify(self) -> None:
        """Check every promise of the definition from the edges alone; InternalFault when one is broken."""
        inside = [frozenset(region.ids) for region in self.regions]
        for region, held in zip(self.regions, inside, strict=True):
            for source, target in self.edges:
                enters = target in held and source not in held and source != region.start
                leaves = source in held and target not in held and source != region.end
                if enters or leaves:
                    raise InternalFault(
                        f"region ({region.start}, {region.end}] is crossed by {source} -> {target}"
                    )
            if region.parent is not None and not held <= inside[region.parent]:
                raise InternalFault(f"region ({region.start}, {region.end}] is not inside its parent")
        siblings: dict[int | None, set[str]] = {}
        for region, held in zip(self.regions, inside, strict=True):
            seen = siblings.setdefault(region.parent, set())
            if seen & held:
                raise InternalFault(f"region ({region.start}, {region.end}] overlaps a sibling")
            seen |= held
        for point in self.cut_points:
            first = self.before(point)
            crossing = {source for source, target in self.edges if source in first and target not in first}
            if crossing != {point}:
                raise InternalFault(f"cut point {point} is crossed by {sorted(crossing)}")


def region_tree(graph: PreparedGraph | tuple[Sequence[str], Iterable[tuple[str, str]]]) -> RegionTree:
    """The canonical regions of the units that cuts divide, or of a plain (ids, edges) graph.

    Raises InputFault as DominanceInformation does.
    """
    ids, edges = (graph.main_ids, graph.main_edges) if isinstance(graph, PreparedGraph) else graph
    edges = tuple(dict.fromkeys(edges))
    dominance = DominanceInformation((ids, edges))
    order = dominance.topological_ids
    chains = _chains(dominance, order)
    outline = _outline(dominance, chains)
    regions = _nest(outline, dominance, order)
    whole = regions[0].elements[1:-1]
    # The last value of a model ends its chain: nothing stands behind it, so it is no cut.
    cuts = tuple(point for point in whole if dominance.reachable(point) - {point, EXIT})
    return RegionTree(ids=tuple(ids), edges=edges, regions=regions, cut_points=cuts)


def _chains(dominance: DominanceInformation, order: Sequence[str]) -> list[tuple[str, ...]]:
    """Every chain of two elements or more, that of ENTRY first."""
    follows: dict[str, str] = {}
    for name in (ENTRY, *order):
        after = dominance.immediate_post_dominator(name)
        if after is not None and dominance.immediate_dominator(after) == name:
            follows[name] = after
    later = set(follows.values())
    chains: list[tuple[str, ...]] = []
    for name in (ENTRY, *order):
        if name in follows and name not in later:
            chain = [name]
            while chain[-1] in follows:
                chain.append(follows[chain[-1]])
            chains.append(tuple(chain))
    return chains


def _outline(
    dominance: DominanceInformation, chains: list[tuple[str, ...]]
) -> list[tuple[Literal["chain", "link"], tuple[str, ...], frozenset[str]]]:
    """Chains and links with what they hold; a chain of two elements is one region, not two."""
    outline: list[tuple[Literal["chain", "link"], tuple[str, ...], frozenset[str]]] = []
    for chain in chains:
        outline.append(("chain", chain, dominance.region_between(chain[0], chain[-1])))
        if len(chain) > 2:
            for start, end in itertools.pairwise(chain):
                outline.append(("link", (start, end), dominance.region_between(start, end)))
    # The link from the last value to EXIT holds nothing; the root stays even in an empty graph.
    return [item for i, item in enumerate(outline) if item[2] or i == 0]


def _nest(
    outline: list[tuple[Literal["chain", "link"], tuple[str, ...], frozenset[str]]],
    dominance: DominanceInformation,
    order: Sequence[str],
) -> tuple[Region, ...]:
    """Largest first, each under the smallest that holds it; laminar sets make one owner per value enough."""
    position = {name: i for i, name in enumerate(order)}
    # Stable: of two equal sets (a link that is all of its chain's region) the chain comes first.
    ranked = sorted(outline, key=lambda item: -len(item[2]))
    owner: dict[str, int] = {}
    regions: list[Region] = []
    for kind, elements, held in ranked:
        parent = owner.get(next(iter(held), ""))
        for name in held:
            owner[name] = len(regions)
        regions.append(
            Region(
                start=elements[0],
                end=elements[-1],
                kind=kind,
                elements=elements,
                ids=tuple(sorted(held, key=position.__getitem__)),
                parent=parent,
                depth=0 if parent is None else regions[parent].depth + 1,
            )
        )
    return tuple(regions)
