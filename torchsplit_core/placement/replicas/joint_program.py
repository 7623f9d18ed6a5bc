"""Several disjoint pipelines, each of a threshold of its own, in one integer program.

A pipeline is a trail (search/path_program.py) or, as a relaxation, a packing without links. Each has its own symmetry
classes; GPUs that no pipeline's classes tell apart make a cell.

| row | formula |
|---|---|
| of pipeline i | those of its trail, or of its packing |
| use[i,c] | Σ_p count_pc · visits_ip ≤ Σ_{cells d in c} y_id |
| cell[d] | Σ_i y_id ≤ GPUs of d |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, Segments
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.layer_assignment import assign_layers
from torchsplit_core.placement.search.network import Component, GpuClasses, components, gpu_classes
from torchsplit_core.placement.search.packing import pack
from torchsplit_core.placement.search.path_program import PathProgram
from torchsplit_core.placement.search.patterns import SegmentPatterns, build_patterns
from torchsplit_core.placement.search.segment_table import Items, SegmentTable, items_at
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values.status import SearchVerdict

_PACK_S = 0.5
"""Seconds to refute a component at a threshold. Chosen, not measured."""

_FEW_GPUS = 0.05
"""Relative gap of a packing of few GPUs. Chosen, not measured."""

_NOTHING = (np.zeros(0, dtype=np.int64), np.zeros(0))
"""No columns and their weights."""


@dataclass(frozen=True)
class ThresholdGraph:
    """What pipelines of a threshold are made of. items: their segments.

    classes, patterns: of all components that may hold all layers; patterns None: they are too many, or one segment may
    hold all layers and needs no link.
    """

    items: Items
    classes: GpuClasses
    patterns: SegmentPatterns | None


@dataclass
class ThresholdGraphs:
    """The graphs of an instance by threshold, each built once."""

    instance: ProblemInstance
    table: SegmentTable
    clock: SearchClock
    kinds: np.ndarray = field(init=False)
    known: dict[float, ThresholdGraph] = field(default_factory=dict)
    known_items: dict[float, Items] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds = np.array(self.instance.kinds, dtype=np.int64)

    def items(self, threshold: float) -> Items:
        """The segments that reach the threshold."""
        if threshold not in self.known_items:
            self.known_items[threshold] = items_at(self.table, threshold, self.instance.max_gpus)
        return self.known_items[threshold]

    def graph(self, threshold: float) -> ThresholdGraph:
        """The links that reach the threshold, too."""
        if threshold not in self.known:
            self.known[threshold] = self._build(threshold)
        return self.known[threshold]

    def _build(self, threshold: float) -> ThresholdGraph:
        items, layers, links = self.items(threshold), self.instance.layers, self.instance.links
        usable = np.flatnonzero((items.counts.sum(axis=0) > 0)[self.kinds])
        able = [
            component.gpus
            for component in components(links, usable, threshold)
            if pack(items, self._fleet(component), layers, self.clock.part(_PACK_S)).status != "none"
        ]
        gpus = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *able]))
        fast = links[np.ix_(gpus, gpus)] >= threshold
        np.fill_diagonal(fast, True)
        classes = gpu_classes(Component(gpus, fast, False), self.instance.kinds)
        alone = (items.low <= layers) & (items.high >= layers)
        return ThresholdGraph(items, classes, None if alone.any() else build_patterns(classes, items))

    def _fleet(self, component: Component) -> np.ndarray:
        return np.bincount(self.kinds[component.gpus], minlength=self.table.counts.shape[1])


def packings_fit(graphs: ThresholdGraphs, thresholds: Sequence[float], seconds: float) -> bool:
    """Whether packings of all these thresholds may share the fleet, links ignored; False is a proof."""
    program = JointProgram(graphs, thresholds, 0)
    return program.solve(graphs.clock.part(seconds))[0] != "none"


class JointProgram:
    """One pipeline for each threshold: the first `linked` of them trails, the others packings."""

    def __init__(self, graphs: ThresholdGraphs, thresholds: Sequence[float], linked: int) -> None:
        """thresholds: above 0. The graphs of the first `linked` have patterns."""
        self._graphs, self._layers = graphs, graphs.instance.layers
        self._program = RowProgram()
        self._trails: list[tuple[ThresholdGraph, PathProgram]] = []
        self._packed: list[tuple[int, np.ndarray]] = []
        self._empty, self._tightened = False, False
        self._given: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        members: list[Sequence[Sequence[int]]] = []
        uses: list[list[tuple[np.ndarray, np.ndarray]]] = []
        of_kind = [np.flatnonzero(graphs.kinds == kind).tolist() for kind in range(graphs.kinds.max() + 1)]
        for number, threshold in enumerate(thresholds):
            if number < linked:
                graph = graphs.graph(threshold)
                assert graph.patterns is not None, "graphs without patterns cannot be linked"
                if not len(graph.patterns.counts):
                    self._empty = True
                    continue
                trail = self._add_trail(graph)
                members.append(graph.classes.members)
                uses.append([trail.class_use(index) for index in range(len(graph.classes.members))])
            else:
                members.append(of_kind)
                uses.append(self._add_packing(graphs.items(threshold), [len(gpus) for gpus in of_kind]))
        self._share(members, uses)

    def _add_trail(self, graph: ThresholdGraph) -> PathProgram:
        assert graph.patterns is not None, "only graphs with patterns are linked"
        trail = PathProgram(
            graph.classes,
            graph.items,
            graph.patterns,
            self._layers,
            self._program,
            segments=self._graphs.instance.counts,
        )
        self._trails.append((graph, trail))
        return trail

    def _add_packing(self, items: Items, fleet: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The rows of search/packing.py; returns the use of each kind."""
        usable = np.flatnonzero((items.counts <= np.array(fleet)).all(axis=1) & (items.low <= self._layers))
        if not len(usable):
            self._empty = True
            return [_NOTHING] * len(fleet)
        first = self._program.add_columns(
            items.sizes[usable].tolist(), (self._layers // items.low[usable]).astype(float).tolist()
        )
        self._packed.append((first, items.multiset[usable]))
        every = first + np.arange(len(usable))
        self._program.add_row(-INF, self._layers, every, items.low[usable])
        self._program.add_row(self._layers, INF, every, items.high[usable])
        if self._graphs.instance.counts is not None:
            self._program.add_row(*self._graphs.instance.counts, every, np.ones(len(usable)))
        return [(every, items.counts[usable, kind]) for kind in range(len(fleet))]

    def _share(
        self,
        members: Sequence[Sequence[Sequence[int]]],
        uses: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]],
    ) -> None:
        """The GPUs of each cell are divided among the pipelines."""
        class_of = np.full((len(members), len(self._graphs.kinds)), -1)
        for number, classes in enumerate(members):
            for index, gpus in enumerate(classes):
                class_of[number, list(gpus)] = index
        cells: dict[tuple[int, ...], list[int]] = {}
        for gpu in range(class_of.shape[1]):
            cells.setdefault(tuple(class_of[:, gpu].tolist()), []).append(gpu)
        self._cells = list(cells.values())
        inside: dict[tuple[int, int], list[int]] = {}
        for cell, key in enumerate(cells):
            for number, index in enumerate(key):
                if index >= 0:
                    inside.setdefault((number, index), []).append(cell)
        users: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in cells]
        for (number, index), parts in inside.items():
            columns, counts = uses[number][index]
            if len(parts) > 1:
                # A class of several cells: how many GPUs of each.
                given = self._program.add_columns(
                    [0.0] * len(parts), [float(len(self._cells[cell])) for cell in parts]
                )
                divided = given + np.arange(len(parts))
                self._program.add_row(
                    -INF,
                    0,
                    np.concatenate([columns, divided]),
                    np.concatenate([counts, -np.ones(len(parts))]),
                )
                for cell, column in zip(parts, divided.tolist(), strict=True):
                    users[cell].append((np.array([column]), np.ones(1)))
                    self._given[number, cell] = (np.array([column]), np.ones(1))
            else:
                users[parts[0]].append((columns, counts))
                self._given[number, parts[0]] = (columns, counts)
        for gpus, shares in zip(self._cells, users, strict=True):
            if len(shares) > 1:
                self._program.add_row(
                    -INF,
                    len(gpus),
                    np.concatenate([columns for columns, _ in shares]),
                    np.concatenate([counts for _, counts in shares]),
                )

    def refuted(self, clock: SearchClock) -> bool:
        """Whether the linear relaxation, with the subtour cuts that it violates, has no solution: a proof."""
        while not (self._empty or self._tightened or clock.over()):
            clock.count("joint_relaxations")
            relaxed = self._program.relax_again(clock.left_s())
            if relaxed.status == "infeasible":
                self._empty = True
            elif relaxed.status != "optimal":
                break
            elif not sum(trail.add_fractional_cuts(relaxed.values) for _, trail in self._trails):
                self._tightened = True
        return self._empty

    def solve(self, clock: SearchClock) -> tuple[SearchVerdict, list[Segments]]:
        """The verdict, and if found the pipelines that are trails; none is a proof. Cuts stay for a second try."""
        if self._empty:
            return "none", []
        clock.count("joint_programs")
        while not clock.over():
            solution = self._program.solve(clock.left_s(), first=True)
            if solution.status in ("infeasible", "unknown"):
                return "none" if solution.status == "infeasible" else "unknown", []
            if not sum(trail.add_piece_cuts(solution.values) for _, trail in self._trails):
                return "found", self._pipelines(solution.values)
        return "unknown", []

    def packing(self, clock: SearchClock) -> list[list[tuple[int, ...]]]:
        """The kinds of the segments of each packing, with few GPUs in all; [] if none was found."""
        if self._empty:
            return []
        solution = self._program.solve(clock.left_s(), relative_gap=_FEW_GPUS)
        if solution.status not in ("optimal", "feasible"):
            return []
        multisets = self._graphs.table.multisets
        packings = []
        for first, rows in self._packed:
            times = np.rint(solution.values[first : first + len(rows)]).astype(np.int64)
            packings.append([multisets[row] for row in np.repeat(rows, times).tolist()])
        return packings

    def _pipelines(self, values: np.ndarray) -> list[Segments]:
        free = [list(gpus) for gpus in self._cells]
        pipelines = []
        for number, (graph, trail) in enumerate(self._trails):
            owned: set[int] = set()
            for cell, gpus in enumerate(free):
                columns, counts = self._given.get((number, cell), _NOTHING)
                amount = int(counts @ np.rint(values[columns]))
                owned.update(gpus[:amount])
                del gpus[:amount]
            members = [[gpu for gpu in gpus if gpu in owned] for gpus in graph.classes.members]
            steps = trail.steps(values, members)
            pipelines.append(assign_layers(self._graphs.table, graph.items, steps, self._layers))
        return pipelines
