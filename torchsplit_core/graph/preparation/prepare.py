"""Prepares a traced graph for cutting.

As traced, a model cannot be cut: every weight is a second source, every mask a second live value. Five steps
(`steps.ALL_STEPS`), each a function, give the prepared graph:

1. "dead"        `live_nodes`      drops what no output needs (assertions, unused results);
2. "constants"   `constant_nodes`  operations that only depend on weights and constants do not
                                   depend on a request; with one reader they join that reader;
3. "aliases"     `fuse_aliases`    getitem and views join their producer, whose storage they share;
4. "weights"     `flow_nodes`      parameters, buffers and constants leave the graph, their bytes
                                   are charged to the units that read them;
5. "side-band"   `find_sideband`   constants with several readers, and small values that only
                                   depend on inputs, not on parameters (attention masks), are
                                   shipped beside every cut instead of counting as live values.

Cutting never divides a unit. A higher-order operation (cond, while) is one node and so stays whole, with the weights
that its bodies read.

Any step may be left out: then dead operations, constants and views are units, weights are units without predecessors,
and nothing is shipped beside. Steps are independent: what each does to a node does not depend on whether "weights" and
"side-band" are taken.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush

from torchsplit_core.graph.operations import is_alias
from torchsplit_core.graph.preparation.prepared import WEIGHT_KINDS, PreparedGraph, Unit, UnitKind, ValueEdge
from torchsplit_core.graph.preparation.sideband import find_sideband
from torchsplit_core.graph.preparation.steps import ALL_STEPS, StepName, chosen_steps
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.values import InternalFault

__all__ = [
    "WEIGHT_KINDS",
    "PreparedGraph",
    "Unit",
    "ValueEdge",
    "constant_nodes",
    "flow_nodes",
    "fuse_aliases",
    "join_constants",
    "live_nodes",
    "prepare",
]

FLOW_KINDS = frozenset({"input", "op"})


def prepare(graph: TorchGraph, steps: Collection[StepName] = ALL_STEPS) -> PreparedGraph:
    """Run the five steps, or only these. Raises InputFault for a cycle or an unknown step."""
    chosen = chosen_steps(steps)
    order = graph.topological_ids
    live = live_nodes(graph) if "dead" in chosen else graph.by_id.keys()
    flow, constant = flow_nodes(graph, chosen, live)
    home = join_constants(graph, flow, constant)
    if "aliases" in chosen:
        home = fuse_aliases(graph, flow, constant, home)
    units, edges = _build_units(graph, flow, home, constant)
    position = {name: i for i, name in enumerate(order)}
    results = {
        home[name] for node in graph.nodes if node.kind == "output" for name in node.inputs if name in home
    }
    return PreparedGraph(
        graph=graph,
        units=units,
        edges=edges,
        sideband=find_sideband(graph, units, edges) if "side-band" in chosen else frozenset(),
        results=tuple(sorted(results, key=position.__getitem__)),
        dead=tuple(name for name in order if name not in live and graph.by_id[name].kind == "op"),
        steps=chosen,
    )


def flow_nodes(
    graph: TorchGraph, steps: Collection[StepName], live: Collection[str]
) -> tuple[list[str], frozenset[str]]:
    """The nodes that become units or join one, in topological order, and which of them are constants."""
    kinds = FLOW_KINDS if "weights" in steps else FLOW_KINDS | WEIGHT_KINDS
    nodes = graph.by_id
    flow = [name for name in graph.topological_ids if name in live and nodes[name].kind in kinds]
    return flow, constant_nodes(graph, flow) if "constants" in steps else frozenset()


def live_nodes(graph: TorchGraph) -> frozenset[str]:
    """Every node that an output needs, and every input; without output nodes all are live."""
    nodes = graph.by_id
    stack = [node.id for node in graph.nodes if node.kind in ("output", "input")]
    if not any(node.kind == "output" for node in graph.nodes):
        stack.extend(node.id for node in graph.nodes if not graph.users[node.id])
    seen = set(stack)
    while stack:
        for name in nodes[stack.pop()].inputs:
            if name not in seen:
                seen.add(name)
                stack.append(name)
    return frozenset(seen)


def constant_nodes(graph: TorchGraph, flow: Iterable[str]) -> frozenset[str]:
    """The operations that depend on no input; `flow`: the live ones in topological order."""
    constants: set[str] = set()
    nodes = graph.by_id
    for name in flow:
        node = nodes[name]
        if node.kind == "op":
            for i in node.inputs:
                if i not in constants and nodes[i].kind not in WEIGHT_KINDS:
                    break
            else:
                constants.add(name)
    return frozenset(constants)


def join_constants(graph: TorchGraph, flow: list[str], constant: frozenset[str]) -> dict[str, str]:
    """For every node the node it joins: a constant with one reader joins that reader, others themselves."""
    in_flow = set(flow)
    home = {name: name for name in flow}
    for name in reversed(flow):
        if name in constant:
            readers = {home[user] for user in graph.users[name] if user in in_flow}
            if len(readers) == 1:
                home[name] = readers.pop()
    return home


def fuse_aliases(
    graph: TorchGraph, flow: list[str], constant: frozenset[str], home: dict[str, str]
) -> dict[str, str]:
    """Let a getitem or view join the unit of its first input, unless another input could close a cycle.

    None can if its other inputs are of the same unit, or do not depend on the producer: constants, and values that only
    depend on inputs (symbolic sizes), while the first value of the unit, and so every value of it, is not of this kind.
    Weights that are units (in `flow`) close no cycle, because they have no predecessors; a view of one does not join
    it: it is a constant.
    """
    nodes = graph.by_id
    home = dict(home)
    plain = _parameter_free(graph, flow)
    constants_of: dict[str, list[str]] = {}
    for name in flow:
        if home[name] != name:
            constants_of.setdefault(home[name], []).append(name)
    for name in flow:
        node = nodes[name]
        if home[name] != name or not is_alias(node) or node.inputs[0] not in home:
            continue
        producer = home[node.inputs[0]]
        if producer == name:  # a view of a folded constant that joined it, its reader
            continue
        if nodes[producer].kind in WEIGHT_KINDS:
            continue
        if producer in constant and name in constants_of:  # nodes that joined it may read the producer
            continue
        # what constants read depends on weights only: after any other producer it closes no cycle
        others = [
            i
            for i in node.inputs[1:]
            if i in home and home[i] not in (producer, name) and nodes[i].kind not in WEIGHT_KINDS
        ]
        if all(i in plain and producer not in plain for i in others):
            home[name] = producer
            for joined in constants_of.pop(name, ()):
                home[joined] = producer
                constants_of.setdefault(producer, []).append(joined)
    return home


def _parameter_free(graph: TorchGraph, flow: Iterable[str]) -> frozenset[str]:
    """Values that depend on inputs, buffers and constants, but on no parameter."""
    parameter_free: set[str] = set()
    nodes = graph.by_id
    for name in flow:
        node = nodes[name]
        for i in node.inputs:
            if i not in parameter_free and nodes[i].kind not in ("buffer", "constant"):
                break
        else:
            if node.kind != "parameter":
                parameter_free.add(name)
    return frozenset(parameter_free)


def _build_units(
    graph: TorchGraph, flow: list[str], home: Mapping[str, str], constant: frozenset[str]
) -> tuple[tuple[Unit, ...], tuple[ValueEdge, ...]]:
    """Units in topological order, and their edges."""
    nodes = graph.by_id
    members: dict[str, list[str]] = {}
    weights_of: dict[str, dict[str, None]] = {}
    read: dict[tuple[str, str], str] = {}  # (value, reading unit): unit that computes it
    exported = {name for node in graph.nodes if node.kind == "output" for name in node.inputs}
    for name in flow:
        unit = home[name]
        members.setdefault(unit, []).append(name)
        for value in nodes[name].inputs:
            source = home.get(value)
            if source is None:
                if nodes[value].kind in WEIGHT_KINDS:
                    weights_of.setdefault(unit, {})[value] = None
            elif source != unit:
                read[value, unit] = source
                exported.add(value)
    edges = tuple(ValueEdge(value, source, unit) for (value, unit), source in read.items())
    units: list[Unit] = []
    for root in _unit_order(list(members), edges):
        unit_members = members[root]
        weights = tuple(weights_of.get(root, ()))
        kind: UnitKind = "op"
        if nodes[root].kind == "input":
            kind = "input"
        elif nodes[root].kind in WEIGHT_KINDS:
            kind = "weight"
        elif root in constant:
            kind = "constant"
        units.append(
            Unit(
                id=root,
                members=tuple(unit_members),
                kind=kind,
                weights=weights,
                weight_bytes=sum(nodes[i].output_bytes for i in weights),
                output_bytes=sum(nodes[i].output_bytes for i in unit_members if i in exported),
            )
        )
    return tuple(units), edges


def _unit_order(roots: list[str], edges: Iterable[ValueEdge]) -> list[str]:
    """Topological order of the units: that of their roots unless a constant joined late."""
    position = {root: i for i, root in enumerate(roots)}
    if all(position[edge.source] < position[edge.target] for edge in edges):
        return roots
    readers: dict[str, list[str]] = {root: [] for root in roots}
    missing = dict.fromkeys(roots, 0)
    for source, target in dict.fromkeys((edge.source, edge.target) for edge in edges):
        readers[source].append(target)
        missing[target] += 1
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
