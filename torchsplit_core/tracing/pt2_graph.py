"""Converts the JSON of an exported program (torch's export schema) to a TorchGraph, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchsplit_core.graph.serialization import LONGEST_ID, MOST_BYTES, graph_to_dict, nodes_in_parts
from torchsplit_core.graph.torch_graph import TorchGraph, join_bodies
from torchsplit_core.tracing.json_stream import JsonCursor
from torchsplit_core.tracing.naming import (
    BATCH_NOTE,
    SymbolNames,
    module_path,
    operation_target,
    short_name,
    source_and_code,
    tensor_bytes,
)
from torchsplit_core.tracing.pt2_arguments import DTYPES, SavedArguments, SavedResults
from torchsplit_core.values import GraphNode, InputFault, quoted
from torchsplit_core.values.graph import NodeKind
from torchsplit_core.values.limits import LARGEST_WHOLE

WEIGHTS: dict[str, tuple[NodeKind, str]] = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
    "custom_obj": ("constant", "custom_obj_name"),
}
SCHEMA_MAJOR = 8
LONGEST_PATH = 2000
SYMBOL = re.compile(r"Symbol\('(\w+)'[^()]*\)")
UNUSED = re.compile(r"_unused_\d+$")
NAMED = ("as_sym_int", "as_sym_float", "as_sym_bool", "as_custom_obj", "as_token")
LISTED = (
    "as_tensors",
    "as_sym_ints",
    "as_sym_floats",
    "as_sym_bools",
    "as_optional_tensors",
    "as_nested_tensors",
)


Sizes = tuple["int | tuple[str, int | None]", ...]
"""Sizes of a tensor: each a number, or an expression and its value in the export."""


@dataclass(frozen=True, slots=True)
class _GraphOutline:
    """A graph without its nodes."""

    inputs: list[Any]
    outputs: list[Any]
    tensors: dict[str, tuple[str, Sizes]]
    read: frozenset[str]


class ProgramReader:
    """Reads one program's JSON. `storages` has the storage of each weight, by which tied weights are detected.

    The nodes are read twice and never all in memory: first for the values they read, because a tied weight is named by
    the first of its names that is read, and the tensors follow the nodes. A text that breaks the schema raises
    KeyError, TypeError, ValueError, IndexError or AttributeError, which the caller turns into one fault; an unknown
    schema raises InputFault.
    """

    def __init__(self, text: str, storages: dict[str, str]) -> None:
        self.text, self.storages = text, storages
        self.symbols = SymbolNames()
        self.metas: dict[tuple[str, Sizes], tuple[str, Sizes]] = {}
        self.nodes_at = 0
        cursor = JsonCursor(text)
        program: dict[str, Any] = {}
        module: dict[str, Any] = {}
        for key in cursor.entries():
            if key != "graph_module":
                program[key] = cursor.value()
                continue
            for part in cursor.entries():
                module[part] = self._outline(cursor) if part == "graph" else cursor.value()
        cursor.end()
        version = program["schema_version"]["major"]
        if version != SCHEMA_MAJOR:
            raise InputFault(
                "schema_version",
                f"is {quoted(version)}, and version {SCHEMA_MAJOR} is read",
                "Export the model again with torch 2.13.",
            )
        self.signature = module["signature"]
        self.ranges: dict[str, Any] = program.get("range_constraints", {})
        self.top: _GraphOutline = module["graph"]
        self.batch = 1

    def parts(self) -> Iterator[dict[str, Any]]:
        """The whole program as parts for `GraphParts`, without its architecture hash."""
        kinds = dict(self._input_kinds())
        self.batch = self._traced_batch([name for name, (kind, _) in kinds.items() if kind == "input"])
        subgraphs: dict[str, TorchGraph] = {}
        yield from nodes_in_parts(self._graph(self.top, self._top_nodes(), kinds, "", subgraphs))
        bodies = {name: graph_to_dict(body) for name, body in subgraphs.items()}
        end: dict[str, Any] = {"traced_batch": self.batch, "subgraphs": bodies}
        largest = self._largest_batch([name for name, (kind, _) in kinds.items() if kind == "input"])
        if largest is not None:
            end |= {"largest_batch": largest, "notes": [BATCH_NOTE.format(largest)]}
        yield end

    def _outline(self, cursor: JsonCursor) -> _GraphOutline:
        """The graph at the cursor without its nodes, whose position is noted."""
        fields: dict[str, Any] = {"nodes": None}
        tensors: dict[str, tuple[str, Sizes]] = {}
        read: set[str] = set()
        for key in cursor.entries():
            if key == "nodes":
                self.nodes_at = cursor.position
                for _ in cursor.items():
                    read.update(_reads(cursor.value()))
            elif key == "tensor_values":
                for name in cursor.entries():
                    tensors[name] = self._meta(cursor.value())
            else:
                fields[key] = cursor.value()
        return _GraphOutline(fields["inputs"], fields["outputs"], tensors, frozenset(read))

    def _body(self, graph: dict[str, Any]) -> _GraphOutline:
        """The same for the body of a cond or while, which is part of a node."""
        tensors = {name: self._meta(meta) for name, meta in graph["tensor_values"].items()}
        read = frozenset(name for node in graph["nodes"] for name in _reads(node))
        return _GraphOutline(graph["inputs"], graph["outputs"], tensors, read)

    def _top_nodes(self) -> Iterator[dict[str, Any]]:
        cursor = JsonCursor(self.text, self.nodes_at)
        return (cursor.value() for _ in cursor.items())

    def _meta(self, meta: dict[str, Any]) -> tuple[str, Sizes]:
        """dtype and sizes of a tensor, stored once for equal ones."""
        sizes = tuple(
            _whole(size["as_int"])
            if "as_int" in size
            else (str(size["as_expr"]["expr_str"]), _hint(size["as_expr"]))
            for size in meta["sizes"]
        )
        tensor_meta = (DTYPES.get(meta["dtype"], "unknown"), sizes)
        return self.metas.setdefault(tensor_meta, tensor_meta)

    def _input_kinds(self) -> Iterator[tuple[str, tuple[NodeKind, str]]]:
        """Name of every input of the graph → its kind and, for a weight, its name in the model."""
        for spec in self.signature["input_specs"]:
            ((kind, content),) = spec.items()
            if kind == "constant_input":
                yield content["name"], ("constant", "")
            elif kind in WEIGHTS:
                role, key = WEIGHTS[kind]
                yield content["arg"]["name"], (role, content[key])
            else:
                for name in _names(content["arg"]):
                    yield name, ("input", "")

    def _traced_batch(self, inputs: list[str]) -> int:
        """Dimension 0 of the first input tensor in the export; 1 if there is none."""
        for name in inputs:
            _, sizes = self.top.tensors.get(name, ("", ()))
            if sizes:
                first = sizes[0] if isinstance(sizes[0], int) else sizes[0][1]
                return max(first or 1, 1)
        return 1

    def _largest_batch(self, inputs: list[str]) -> int | None:
        """The largest batch that the ranges of the inputs' free sizes allow; None for any."""
        sizes = (size for name in inputs for size in self.top.tensors.get(name, ("", ()))[1])
        batches = (SYMBOL.fullmatch(s[0]) for s in sizes if not isinstance(s, int) and s[1] == self.batch)
        limits = (self.ranges.get(symbol[1], {}).get("max_val") for symbol in batches if symbol)
        return min((most for most in limits if most and _whole(most) <= LARGEST_WHOLE), default=None)

    def _graph(
        self,
        graph: _GraphOutline,
        entries: Iterator[dict[str, Any]],
        kinds: dict[str, tuple[NodeKind, str]],
        outer: str,
        subgraphs: dict[str, TorchGraph],
    ) -> Iterator[GraphNode]:
        """The nodes of a graph or body; their own bodies are added to `subgraphs`.

        `outer` is the module path of the owner. Raises InputFault for a node that reads a value not made before it,
        which excludes cycles and dangling edges.
        """
        ties = self._ties(kinds, graph.read)
        passed = list(kinds) or [name for entry in graph.inputs for name in _names(entry)]
        made: set[str] = set()
        for name in passed:
            if ties.get(name, name) == name:
                yield _check_inputs_made(
                    self._leaf(name, *kinds.get(name, ("input", "")), graph.tensors), made
                )
        for entry in entries:
            operation, *picks = self._operation(entry, graph.tensors, ties, outer)
            for node in (operation, *picks):
                yield _check_inputs_made(node, made)
            bodies: dict[str, TorchGraph] = {}
            for argument in entry["inputs"]:
                body = argument["arg"].get("as_graph")
                if body is not None:
                    inner: dict[str, TorchGraph] = {}
                    content = body["graph"]
                    nodes = self._graph(
                        self._body(content), iter(content["nodes"]), {}, operation.module, inner
                    )
                    bodies[str(body["name"])] = TorchGraph(tuple(nodes), "", self.batch, inner)
            if bodies:
                subgraphs[operation.id] = join_bodies(bodies)
        results = SavedResults(graph.outputs)
        returned = tuple(ties.get(name, name) for name in results.reads)
        yield _check_inputs_made(
            GraphNode(id="output", kind="output", inputs=returned, arguments=results.arguments), made
        )

    def _ties(self, kinds: dict[str, tuple[NodeKind, str]], read: frozenset[str]) -> dict[str, str]:
        """Name of a weight → the name that represents its storage: the first that is read."""
        groups: dict[str, list[str]] = {}
        for name, (_, target) in kinds.items():
            if target in self.storages:
                groups.setdefault(self.storages[target], []).append(name)
        return {
            name: next((n for n in names if n in read), names[0])
            for names in groups.values()
            for name in names
        }

    def _leaf(
        self, name: str, kind: NodeKind, target: str, tensors: dict[str, tuple[str, Sizes]]
    ) -> GraphNode:
        shape, dtype, size = self._value(tensors.get(name))
        module = target.rpartition(".")[0]
        return GraphNode(name, kind, "", target, (), module, shape, dtype, size)

    def _operation(
        self,
        entry: dict[str, Any],
        tensors: dict[str, tuple[str, Sizes]],
        ties: dict[str, str],
        outer: str,
    ) -> list[GraphNode]:
        """The operation, and a getitem for each of several outputs."""
        index_of = dict(_results(entry["outputs"]))
        results = list(index_of)
        name = entry.get("name") or results[0]
        target = operation_target(entry["target"])
        several = results != [name]
        shape, dtype, size = self._value(None if several else tensors.get(name))
        parts = []
        if several:
            for result in results:
                parts.append(self._value(tensors.get(result)))
            size = sum(part[2] for part in parts)
        metadata = entry["metadata"]
        module = _module(metadata.get("nn_module_stack", "")) or outer
        source, code = source_and_code(metadata.get("stack_trace", ""))
        call = SavedArguments(entry)
        inputs = tuple(ties.get(read, read) for read in call.reads)
        node = GraphNode(
            name, "op", short_name(target), target, inputs, module, shape, dtype, size, source, code,
            call.arguments,
        )  # fmt: skip
        picks = [
            replace(
                GraphNode(result, "op", "getitem", "_operator.getitem", (name,), module, *part, source, code),
                arguments={"0": {"input": 0}, "1": index_of[result]},
            )
            for result, part in zip(results, parts, strict=False)
            if not UNUSED.search(result)
        ]
        return [node, *picks]

    def _value(self, meta: tuple[str, Sizes] | None) -> tuple[tuple[int | str, ...] | None, str | None, int]:
        """Shape, dtype and bytes of a tensor; nothing for another value."""
        if meta is None:
            return None, None, 0
        dtype, sizes = meta
        shape = tuple(size if isinstance(size, int) else self.symbols.write(size[0]) for size in sizes)
        return shape, dtype, tensor_bytes(dtype, tuple(s if isinstance(s, int) else s[1] for s in sizes))


def _results(outputs: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    """The results of a node, each with its index; one that is None has an index but no name."""
    parts = outputs
    if len(outputs) == 1:
        ((kind, content),) = outputs[0].items()
        if kind in LISTED:
            parts = [{kind: [part]} for part in content]
    for index, part in enumerate(parts):
        yield from ((name, index) for name in _names(part))


def _reads(entry: dict[str, Any]) -> Iterator[str]:
    """The values that a node reads, in order and with repetitions."""
    return (name for argument in entry["inputs"] for name in _names(argument["arg"]))


def _check_inputs_made(node: GraphNode, made: set[str]) -> GraphNode:
    """The node, after checking that everything it reads was made before it."""
    if len(node.id) > LONGEST_ID:
        raise InputFault(
            f"node {quoted(node.id)}",
            f"has a name of {len(node.id)} characters, more than {LONGEST_ID}",
            "Rename the module or input it is named after.",
        )
    for name in node.inputs:
        if name not in made:
            raise InputFault(
                f"node {quoted(node.id)}",
                f"reads {quoted(name)}, which no node before it makes",
                "Export the model again.",
            )
    made.add(node.id)
    return node


def _names(argument: dict[str, Any]) -> Iterator[str]:
    """The values that an argument names, in order."""
    for kind, content in argument.items():
        if kind in ("as_tensor", "as_optional_tensor"):
            if "name" in content:
                yield content["name"]
            elif "as_tensor" in content:
                yield content["as_tensor"]["name"]
        elif kind in NAMED:
            name = content.get("as_name", content.get("name"))
            if name is not None:
                yield name
        elif kind in LISTED:
            for part in content:
                if isinstance(part, list):
                    yield from (item["name"] for item in part)
                elif "name" in part:
                    yield part["name"]
                elif "as_tensor" in part:
                    yield part["as_tensor"]["name"]
                elif "as_name" in part:
                    yield part["as_name"]
        elif kind == "as_string_to_argument":
            for key in sorted(content):
                yield from _names(content[key])


def _hint(expression: dict[str, Any]) -> int | None:
    """The value of an expression in the export; None if data-dependent."""
    hint = expression.get("hint")
    return _whole(hint["as_int"]) if hint and "as_int" in hint else None


def _whole(size: Any) -> int:
    if type(size) is not int or not 0 <= size <= MOST_BYTES:
        raise ValueError(f"size {str(size)[:40]} is no whole number of 64 bits from 0")
    return size


def _module(stack: str) -> str:
    """The innermost module of "key,path,type;key,path,type"."""
    if not stack:
        return ""
    parts = stack.rsplit(";", 1)[-1].split(",")
    path = ",".join(parts[1:-1])
    if len(path) > LONGEST_PATH:
        raise ValueError("a module path is too long")
    return module_path(path)
