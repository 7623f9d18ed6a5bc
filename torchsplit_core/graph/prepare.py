"""A traced graph, made ready for cutting.

As traced, a model has no cut at all: every weight is a second source, every mask a second
live value. Five steps, each a function, lead to the prepared graph:

1. `live_nodes`           what no output needs is set aside (assertions, unused results);
2. `constant_nodes`       operations that weights and constants alone determine do not depend
                          on a request; with one reader they join that reader;
3. `fuse_aliases`         getitem and views join their producer, whose storage they share;
4. `unit weights`         parameters, buffers and constants leave the graph, their bytes are
                          charged to the units that read them;
5. `find_sideband`        constants with several readers, and small values that inputs alone
                          determine without any parameter (attention masks), are shipped
                          beside every cut instead of counting as live values.

A unit is what cutting never divides. A higher-order operation (cond, while) is one node and
so stays whole, with the weights that its bodies read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from statistics import median
from typing import Literal

from torchsplit_core.graph.operations import is_alias
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import InternalFault

WEIGHT_KINDS = frozenset({"parameter", "buffer", "constant"})


@dataclass(frozen=True, slots=True)
class Unit:
    """Original nodes that stay together, in execution order; `id` is the one the others joined.

    `weight_bytes`: the distinct parameters, buffers and constants read. `output_bytes`: the
    distinct values that other units or the output read, at the traced batch.
    """

    id: str
    members: tuple[str, ...]
    kind: Literal["input", "op", "constant"]
    weights: tuple[str, ...]
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class ValueEdge:
    """Unit `target` reads the value of original node `value`, which unit `source` computes."""

    value: str
    source: str
    target: str


@dataclass(frozen=True)
class PreparedGraph:
    """Units in topological order, and who reads whose values.

    `sideband` are unit ids that no cut counts; `results` the units whose values the output
    reads; `dead` the original operations that no output needs, in execution order.
    """

    graph: TorchGraph
    units: tuple[Unit, ...]
    edges: tuple[ValueEdge, ...]
    sideband: frozenset[str]
    results: tuple[str, ...]
    dead: tuple[str, ...]

    @cached_property
    def by_id(self) -> Mapping[str, Unit]:
        """Every unit under its id."""
        return {unit.id: unit for unit in self.units}

    @cached_property
    def unit_of(self) -> Mapping[str, str]:
        """The unit of every original node that has one."""
        return {member: unit.id for unit in self.units for member in unit.members}

    @cached_property
    def main_ids(self) -> tuple[str, ...]:
        """The units that cuts divide: all but the side-band, in topological order."""
        return tuple(unit.id for unit in self.units if unit.id not in self.sideband)

    @cached_property
    def main_edges(self) -> tuple[tuple[str, str], ...]:
        """(source, target) between units that cuts divide, each pair once."""
        pairs = ((edge.source, edge.target) for edge in self.edges)
        return tuple(
            dict.fromkeys(p for p in pairs if p[0] not in self.sideband and p[1] not in self.sideband)
        )


def prepare(graph: TorchGraph) -> PreparedGraph:
    """Run the five steps. Raises InputFault when the graph has a cycle."""
    order = graph.topological_ids
    live = live_nodes(graph)
    flow = [name for name in order if name in live and graph.by_id[name].kind in ("input", "op")]
    constant = constant_nodes(graph, flow)
    home = fuse_aliases(graph, flow, join_constants(graph, flow, constant))
    units, edges = _units(graph, flow, home, constant)
    position = {name: i for i, name in enumerate(order)}
    results = {
        home[name] for node in graph.nodes if node.kind == "output" for name in node.inputs if name in home
    }
    return PreparedGraph(
        graph=graph,
        units=units,
        edges=edges,
        sideband=find_sideband(graph, units, edges),
        results=tuple(sorted(results, key=position.__getitem__)),
        dead=tuple(name for name in order if name not in live and graph.by_id[name].kind == "op"),
    )


def live_nodes(graph: TorchGraph) -> frozenset[str]:
    """Every node that an output needs, and every input; without output nodes all are live."""
    stack = [node.id for node in graph.nodes if node.kind in ("output", "input")]
    if not any(node.kind == "output" for node in graph.nodes):
        stack.extend(node.id for node in graph.nodes if not graph.users[node.id])
    seen = set(stack)
    while stack:
        for name in graph.by_id[stack.pop()].inputs:
            if name not in seen:
                seen.add(name)
                stack.append(name)
    return frozenset(seen)


def constant_nodes(graph: TorchGraph, flow: Iterable[str]) -> frozenset[str]:
    """The operations that no input reaches, `flow` being the live ones in topological order."""
    found: set[str] = set()
    for name in flow:
        node = graph.by_id[name]
        if node.kind == "op" and all(i in found or graph.by_id[i].kind in WEIGHT_KINDS for i in node.inputs):
            found.add(name)
    return frozenset(found)


def join_constants(graph: TorchGraph, flow: list[str], constant: frozenset[str]) -> dict[str, str]:
    """For every node the node it joins: a constant with one reader the reader, others themselves."""
    in_flow = set(flow)
    home = {name: name for name in flow}
    for name in reversed(flow):
        if name in constant:
            readers = {home[user] for user in graph.users[name] if user in in_flow}
            if len(readers) == 1:
                home[name] = readers.pop()
    return home


def fuse_aliases(graph: TorchGraph, flow: list[str], home: dict[str, str]) -> dict[str, str]:
    """Lets a getitem or view join the unit of its first input, when no other input could close a cycle.

    That is so when its other inputs are of the same unit, or are determined without the
    producer: constants, and values that inputs alone determine (symbolic sizes) while the
    producer's value is not such a one.
    """
    home = dict(home)
    plain = _without_parameters(graph, flow)
    constants_of: dict[str, list[str]] = {}
    for name in flow:
        if home[name] != name:
            constants_of.setdefault(home[name], []).append(name)
    for name in flow:
        node = graph.by_id[name]
        if home[name] != name or not is_alias(node) or node.inputs[0] not in home:
            continue
        producer = home[node.inputs[0]]
        if producer == name:  # a view of a folded constant that joined it: it is the reader
            continue
        # what the joined constants read is determined by weights alone and can close no cycle
        others = [i for i in node.inputs[1:] if i in home and home[i] not in (producer, name)]
        if all(i in plain and node.inputs[0] not in plain for i in others):
            home[name] = producer
            for joined in constants_of.pop(name, ()):
                home[joined] = producer
                constants_of.setdefault(producer, []).append(joined)
    return home


def _without_parameters(graph: TorchGraph, flow: Iterable[str]) -> frozenset[str]:
    """Values that inputs, buffers and constants determine: no parameter stands before them."""
    found: set[str] = set()
    for name in flow:
        node = graph.by_id[name]
        if all(i in found or graph.by_id[i].kind in ("buffer", "constant") for i in node.inputs):
            found.add(name)
    return frozenset(found)


def _units(
    graph: TorchGraph, flow: list[str], home: Mapping[str, str], constant: frozenset[str]
) -> tuple[tuple[Unit, ...], tuple[ValueEdge, ...]]:
    """Units in the topological order of the graph between them, and their edges."""
    members: dict[str, list[str]] = {}
    for name in flow:
        members.setdefault(home[name], []).append(name)
    edges: dict[ValueEdge, None] = {}
    exported: dict[str, dict[str, None]] = {root: {} for root in members}
    for name in flow:
        for source in graph.by_id[name].inputs:
            if source in home and home[source] != home[name]:
                edges[ValueEdge(source, home[source], home[name])] = None
                exported[home[source]][source] = None
        if any(graph.by_id[user].kind == "output" for user in graph.users[name]):
            exported[home[name]][name] = None
    units: list[Unit] = []
    for root in _unit_order(list(members), edges):
        found = members[root]
        weights = dict.fromkeys(
            i for name in found for i in graph.by_id[name].inputs if graph.by_id[i].kind in WEIGHT_KINDS
        )
        kind: Literal["input", "op", "constant"] = "op"
        if graph.by_id[root].kind == "input":
            kind = "input"
        elif root in constant:
            kind = "constant"
        units.append(
            Unit(
                id=root,
                members=tuple(found),
                kind=kind,
                weights=tuple(weights),
                weight_bytes=sum(graph.by_id[i].output_bytes for i in weights),
                output_bytes=sum(graph.by_id[i].output_bytes for i in exported[root]),
            )
        )
    return tuple(units), tuple(edges)


def _unit_order(roots: list[str], edges: Iterable[ValueEdge]) -> list[str]:
    """Topological order of the units: the order of their roots holds unless a constant joined late."""
    readers: dict[str, list[str]] = {root: [] for root in roots}
    missing = dict.fromkeys(roots, 0)
    for source, target in dict.fromkeys((edge.source, edge.target) for edge in edges):
        readers[source].append(target)
        missing[target] += 1
    position = {root: i for i, root in enumerate(roots)}
    ready = [i for i, root in enumerate(roots) if not missing[root]]
    order: list[str] = []
    while ready:
        order.append(roots[heappop(ready)])
        for target in readers[order[-1]]:
            missing[target] -= 1
            if not missing[target]:
                heappush(ready, position[target])
    if len(order) < len(roots):
        raise InternalFault("fusing nodes into units closed a cycle")
    return order


def find_sideband(
    graph: TorchGraph, units: tuple[Unit, ...], edges: tuple[ValueEdge, ...], limit_bytes: float | None = None
) -> frozenset[str]:
    """Units shipped beside every cut: constants with several readers, and small masks of the inputs.

    Such a mask has only side-band units before it, no parameter among them, is read by
    two units or more outside, and is at most `limit_bytes` large; by default the median
    output of the units that read parameters (a mask as large as the hidden state is no
    small thing to ship). A graph without parameters has no side-band of masks.
    """
    reads_parameter = {u.id for u in units if any(graph.by_id[w].kind == "parameter" for w in u.weights)}
    sizes = [u.output_bytes for u in units if u.id in reads_parameter and u.kind == "op" and u.output_bytes]
    if limit_bytes is None:
        limit_bytes = median(sizes) if sizes else -1.0
    before: dict[str, set[str]] = {unit.id: set() for unit in units}
    after: dict[str, set[str]] = {unit.id: set() for unit in units}
    for edge in edges:
        before[edge.target].add(edge.source)
        after[edge.source].add(edge.target)
    constants = {unit.id for unit in units if unit.kind == "constant"}
    candidates = set(constants)
    for unit in units:
        if sizes and unit.id not in reads_parameter and before[unit.id] <= candidates:
            candidates.add(unit.id)
    while True:
        # A value read outside must be small; all before it must be in the side-band too.
        keep = {
            unit.id
            for unit in units
            if unit.id in candidates
            and before[unit.id] <= candidates
            and (unit.id in constants or after[unit.id] <= candidates or unit.output_bytes <= limit_bytes)
        }
        # Only what serves a value with several readers outside is worth shipping.
        useful: set[str] = set()
        for unit in reversed(units):
            outside = len(after[unit.id] - keep)
            if unit.id in keep and (unit.id in constants or outside > 1 or after[unit.id] & useful):
                useful.add(unit.id)
        if useful == candidates:
            return frozenset(useful)
        candidates = useful
