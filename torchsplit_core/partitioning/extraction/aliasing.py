"""Aliasing in an exported graph, and whether a cut respects writes in place.

Values that may share storage (views, results of in-place operations) form a class, by the aliasing that operators
declare in their schemas. A class without writes may be cut anywhere: a copy is as good. A written one has several
contents over time, so:

1. all its writes are in one stage, W;
2. an earlier stage reads it only before the first write;
3. a later stage reads it only after the last write, and through a value that W made: what leaves W is final;
4. at most one of its values enters W from earlier stages: two copies would diverge;
5. only W reads a written weight, since each stage has its own copy.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node, map_arg

from torchsplit_core.values import InputFault

MAY_RETURN_THEIR_INPUT = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"})
"""aten operations that return their input itself in eval mode, which no schema declares."""
REMEDY = "Export another candidate, or write it out of place in the model (x = x + y for x += y)."


@dataclass(frozen=True)
class Storages:
    """The class of every value by name (its root), and the operations that write each class, in order."""

    root_of: Mapping[str, str]
    writers: Mapping[str, tuple[Node, ...]]

    def is_written(self, name: str) -> bool:
        """Whether an operation of the graph writes the memory of this value."""
        return self.root_of[name] in self.writers


def find_storages(module: GraphModule) -> Storages:
    """The classes of a graph. Time is linear in its reads."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    written: list[tuple[str, Node]] = []
    for node in module.graph.nodes:
        parent[node.name] = node.name
        if node.op == "call_function":
            for shared in _aliased(module, node):
                parent[root(shared.name)] = root(node.name)
            written.extend((read.name, node) for read in _written(module, node))
    writers: dict[str, dict[Node, None]] = {}
    for name, node in written:
        writers.setdefault(root(name), {})[node] = None
    return Storages(
        {name: root(name) for name in parent}, {r: tuple(writer_nodes) for r, writer_nodes in writers.items()}
    )


def check_writes(
    storages: Storages,
    nodes: Iterable[Node],
    stage_of: Mapping[str, int],
    inputs: frozenset[str],
    stages: int,
) -> None:
    """Raise InputFault for a cut that breaks a rule above; it names the operation.

    `nodes`: the live ones with the output node, in execution order. `stage_of`: the stage of every live operation.
    `inputs`: the model's inputs; any other name is a weight.
    """
    nodes = list(nodes)
    position = {node.name: i for i, node in enumerate(nodes)}
    for root, writers in storages.writers.items():
        writers = tuple(node for node in writers if node.name in position)
        if not writers:
            continue
        stage = stage_of[writers[0].name]
        for writer in writers[1:]:
            if stage_of[writer.name] != stage:
                raise _fault(writer, f"{writers[0].name}, in another stage, writes the same memory")
        first, last = position[writers[0].name], position[writers[-1].name]
        entering: set[str] = set()
        for node in nodes:
            read = [source.name for source in node.all_input_nodes if storages.root_of[source.name] == root]
            if not read:
                continue
            node_stage = stage_of.get(node.name, stages)  # the result is taken after the last stage
            made = {name: stage_of.get(name, -1) for name in read}
            if any(name not in stage_of and name not in inputs for name in read) and node_stage != stage:
                raise _fault(writers[0], f"{node.name}, in another stage, reads the weight that it writes")
            if node_stage < stage and position[node.name] > first:
                raise _fault(writers[0], f"{node.name}, in an earlier stage, reads what this writes")
            if node_stage > stage and position[node.name] < last:
                raise _fault(writers[-1], f"{node.name}, in a later stage, reads what was there before")
            if node_stage > stage and min(made.values()) < stage:
                raise _fault(
                    writers[-1], f"{node.name}, in a later stage, reads a value from before the write"
                )
            if node_stage == stage:
                entering.update(
                    name for name in read if made[name] < stage and (name in stage_of or name in inputs)
                )
        if len(entering) > 1:
            names = ", ".join(sorted(entering))
            raise _fault(writers[0], f"several values of this memory enter its stage: {names}")


def _fault(node: Node, reason: str) -> InputFault:
    return InputFault(f"operation {node.name}", f"writes in place ({node.target}), and {reason}", REMEDY)


def _aliased(module: GraphModule, node: Node) -> Iterator[Node]:
    """The arguments whose storage the result may share."""
    if node.target is operator.getitem:
        yield from node.all_input_nodes[:1]
    elif isinstance(node.target, torch._ops.OpOverload):
        schema = node.target._schema
        if node.target.overloadpacket.__name__ in MAY_RETURN_THEIR_INPUT:
            yield from node.all_input_nodes[:1]
        elif any(result.alias_info is not None for result in schema.returns):
            yield from _arguments(node, only_written=False)
    elif isinstance(node.target, torch._ops.HigherOrderOperator):
        for body in bodies(module, node):
            inner = find_storages(body)
            inputs = {
                inner.root_of[inner_node.name] for inner_node in body.graph.find_nodes(op="placeholder")
            }
            if any(
                inner.root_of[inner_node.name] in inputs
                for inner_node in body.graph.output_node().all_input_nodes
            ):
                yield from _operands(node)


def _written(module: GraphModule, node: Node) -> Iterator[Node]:
    """The arguments that the operation writes."""
    if isinstance(node.target, torch._ops.OpOverload):
        if node.target._schema.is_mutable:
            yield from _arguments(node, only_written=True)
    elif isinstance(node.target, torch._ops.HigherOrderOperator):
        for body in bodies(module, node):
            inner = find_storages(body)
            inputs = [placeholder.name for placeholder in body.graph.find_nodes(op="placeholder")]
            if any(inner.is_written(name) for name in inputs):
                yield from _operands(node)


def _operands(node: Node) -> list[Node]:
    return [read for read in node.all_input_nodes if read.op != "get_attr"]


def bodies(module: GraphModule, node: Node) -> Iterator[GraphModule]:
    """The graphs inside a higher-order operation."""
    for read in node.all_input_nodes:
        body = getattr(module, str(read.target), None) if read.op == "get_attr" else None
        if isinstance(body, GraphModule):
            yield body


def _arguments(node: Node, *, only_written: bool) -> Iterator[Node]:
    """The arguments that the schema marks as shared with the result or, if asked, as written."""
    marked: list[Node] = []
    for i, argument in enumerate(node.target._schema.arguments):
        info = argument.alias_info
        if info is None or (only_written and not info.is_write):
            continue
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        map_arg(given, marked.append)
    yield from marked
