"""Single-entry single-exit regions of a prepared graph, as one canonical tree.

Definition. For values a and b, (a, b] is a region if a strictly dominates b and b post-dominates a. It contains every
value that a strictly dominates and b post-dominates. Then only the value of a enters it, and only the value of b leaves
it:

        a ──┬─> x ──┐
            └─> y ──┴─> b ──> …          (a, b] = {x, y, b}

Which pairs are regions. "(a, b] is a region" orders values into disjoint chains c0, c1, …, cm: every pair of one chain
is a region, no pair across chains is, and c[i+1] is the immediate post-dominator of c[i] while c[i] is the immediate
dominator of c[i+1].

The tree. Every chain gives the region (c0, cm], and below it the links (c[i], c[i+1]]; the chains inside a link are
below that link. These regions are laminar: two of them are nested or disjoint. With ENTRY and EXIT included, the root
is (ENTRY, EXIT], the whole model, and the inner elements of its chain are the whole-model cut points.

The order. The values therefore have a topological order in which every region is one contiguous range (see
`region_layout`): a region stores the begin and length of its range, and takes its ids from the order on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, overload

from torchsplit_core.graph.flow import ENTRY, EXIT, FlowGraph, build_flow
from torchsplit_core.graph.preparation.prepared import PreparedGraph
from torchsplit_core.graph.region_layout import RegionLayout, layout_regions
from torchsplit_core.values import InternalFault


@dataclass(frozen=True, slots=True)
class Region:
    """(start, end]: `count` values of the tree's order from position `first` on.

    `index` and `parent` are indices in `RegionTree.regions`.
    """

    index: int
    start: str
    end: str
    kind: Literal["chain", "link"]
    first: int
    count: int
    parent: int | None
    depth: int
    table: RegionTable = field(repr=False, compare=False)

    @property
    def ids(self) -> tuple[str, ...]:
        """Its values in topological order; computed at each call."""
        return self.table.order[self.first : self.first + self.count]

    @property
    def elements(self) -> tuple[str, ...]:
        """From start to end, those of a chain, or just the two of a link; computed at each call."""
        return self.table.elements(self.index)


@dataclass(frozen=True, eq=False)
class RegionTable(Sequence[Region]):
    """The regions of a tree as columns of integers: a million of them as objects would fill the memory."""

    flow: FlowGraph
    layout: RegionLayout
    order: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.layout.end)

    @overload
    def __getitem__(self, index: int) -> Region: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Region, ...]: ...
    def __getitem__(self, index: int | slice) -> Region | tuple[Region, ...]:
        if isinstance(index, slice):
            return tuple(map(self._region, range(*index.indices(len(self)))))
        return self._region(range(len(self))[index])

    def elements(self, index: int) -> tuple[str, ...]:
        """The elements of one region."""
        rows, names = self.layout, self.flow.names
        labels, end = [rows.start[index]], rows.end[index]
        while labels[-1] != end:
            labels.append(rows.after[labels[-1]] if rows.is_chain[index] else end)
        return tuple(names[i] for i in labels)

    def _region(self, row: int) -> Region:
        rows, names = self.layout, self.flow.names
        return Region(
            index=row,
            start=names[rows.start[row]],
            end=names[rows.end[row]],
            kind="chain" if rows.is_chain[row] else "link",
            first=rows.first[row],
            count=rows.count[row],
            parent=rows.parent[row] if row else None,
            depth=rows.depth[row],
            table=self,
        )


@dataclass(frozen=True)
class RegionTree:
    """All canonical regions, parents before children and siblings as in `order`.

    The first is the whole graph. `order` has all `ids` topologically, every region contiguous. `cut_points`, in
    pipeline order: the values that divide the whole graph so that only that value crosses.
    """

    ids: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    order: tuple[str, ...]
    regions: Sequence[Region]
    cut_points: tuple[str, ...]

    def children(self, index: int) -> tuple[int, ...]:
        """Indices of the regions directly below one."""
        return self._children.get(index, ())

    def before(self, cut_point: str) -> frozenset[str]:
        """Everything before a cut after this cut point, which is included."""
        return frozenset(self.order[: self.position[cut_point] + 1])

    @cached_property
    def position(self) -> dict[str, int]:
        """The position of every value in `order`."""
        return {name: i for i, name in enumerate(self.order)}

    @cached_property
    def innermost(self) -> tuple[int, ...]:
        """For every position in `order` the index of the smallest region that contains it."""
        opened: dict[int, int] = {}  # by begin; the last is the innermost
        stops, parents = [], []
        for i, region in enumerate(self.regions):
            opened[region.first] = i
            stops.append(region.first + region.count)
            parents.append(region.parent or 0)
        innermost_regions: list[int] = []
        inner = 0
        for position in range(len(self.order)):
            while position >= stops[inner]:
                inner = parents[inner]
            inner = opened.get(position, inner)
            innermost_regions.append(inner)
        return tuple(innermost_regions)

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        children: dict[int, list[int]] = {}
        for i, region in enumerate(self.regions):
            if region.parent is not None:
                children.setdefault(region.parent, []).append(i)
        return {parent: tuple(below) for parent, below in children.items()}

    def verify(self) -> None:
        """Check the whole definition from the edges alone. Raises InternalFault if it is broken.

        A pass over the regions and one over the edges, in linear time.
        """
        regions, position = tuple(self.regions), self.position
        _verify_nesting(self, regions)
        within = self.innermost
        farthest = [0] * len(self.order)
        entered: set[str] = set()
        for source, target in self.edges:
            if position[source] >= position[target]:
                raise InternalFault(f"the order of the regions has {target} before {source}")
            entered.add(target)
            farthest[position[source]] = max(farthest[position[source]], position[target])
            _verify_edge(regions, source, target, within[position[source]], within[position[target]])
        for name, inner, reach in zip(self.order, self.innermost, farthest, strict=True):
            if name not in entered:
                _verify_edge(regions, ENTRY, name, None, inner)
            if not reach:
                _verify_edge(regions, name, EXIT, inner, None)
        for point in self.cut_points:
            if not farthest[position[point]]:
                raise InternalFault(f"nothing reads the cut point {point}")
        cuts, across = set(self.cut_points), 0
        for i, name in enumerate(self.order):
            if name in cuts and across > i:
                raise InternalFault(f"cut point {name} is crossed by a read of {self.order[across]}")
            across = max(across, farthest[i])


def region_tree(graph: PreparedGraph | tuple[Sequence[str], Iterable[tuple[str, str]]]) -> RegionTree:
    """The canonical regions of the units that cuts divide, or of a plain (ids, edges) graph.

    Time and memory are linear in ids and edges, but for the dominators (`FlowGraph`). Raises InputFault as
    DominanceInformation does.
    """
    if isinstance(graph, PreparedGraph):
        ids, edges = graph.main_ids, graph.main_edges
    else:
        ids, edges = tuple(graph[0]), tuple(dict.fromkeys(graph[1]))
    flow = build_flow(ids, edges)
    layout = layout_regions(flow)
    order = tuple(flow.names[i] for i in layout.order)
    regions = RegionTable(flow, layout, order)
    # The last value of a model ends its chain: nothing follows it, so it is no cut.
    whole = regions.elements(0)[1:-1]
    final = {flow.names[i] for i in flow.no_readers.tolist()}
    cuts = tuple(name for name in whole if name not in final)
    return RegionTree(ids=ids, edges=edges, order=order, regions=regions, cut_points=cuts)


def _verify_nesting(tree: RegionTree, regions: tuple[Region, ...]) -> None:
    """Each region lies in its parent, after its previous sibling, and its end is its last value."""
    if len(tree.position) < len(tree.order) or tree.position.keys() != set(tree.ids):
        raise InternalFault("the order of the regions does not have every value once")
    if regions[0].parent is not None or regions[0].count != len(tree.order):
        raise InternalFault("the first region is not the whole graph")
    free = [region.first for region in regions]
    for i, region in enumerate(regions[1:], 1):
        what, stop = f"region ({region.start}, {region.end}]", region.first + region.count
        if region.parent is None or region.parent >= i:
            raise InternalFault(f"{what} has no parent before it")
        above = regions[region.parent]
        if region.first < above.first or stop > above.first + above.count:
            raise InternalFault(f"{what} is not inside its parent")
        if region.first < free[region.parent]:
            raise InternalFault(f"{what} overlaps a sibling")
        if region.end not in (EXIT, tree.order[stop - 1]):
            raise InternalFault(f"{what} does not end where it says")
        free[region.parent] = stop


def _verify_edge(
    regions: tuple[Region, ...], source: str, target: str, inner: int | None, outer: int | None
) -> None:
    """The regions that an edge enters start at its source, those that it leaves end there.

    `inner` and `outer` are the smallest regions of source and target; None: outside all.
    """
    while inner != outer:
        # A parent has a smaller index, so the region of the larger index does not contain both.
        if inner is not None and (outer is None or inner > outer):
            region = regions[inner]
            crossed = region.end not in (source, target)  # EXIT belongs to the regions that it ends
            inner = region.parent
        elif outer is not None:
            region = regions[outer]
            crossed = region.start != source
            outer = region.parent
        if crossed:
            raise InternalFault(f"region ({region.start}, {region.end}] is crossed by {source} -> {target}")
