"""TorchGraph to and from the JSON of the graph contract (see docs/file-formats.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from torchsplit_core.graph.arguments import check_arguments
from torchsplit_core.graph.torch_graph import Route, TorchGraph
from torchsplit_core.values import GraphNode, InputFault, quoted, suggestion
from torchsplit_core.values.errors import json_words
from torchsplit_core.values.graph import NodeKind
from torchsplit_core.values.limits import LARGEST_WHOLE

FORMAT = "torchsplit.graph"
VERSION = 1
KINDS = get_args(NodeKind)
ROUTES = get_args(Route)
LONGEST_ID = 200
LONGEST_SIZE = 1000
"""Most characters of a size expression; its evaluation may nest as deep."""
MOST_BYTES = 2**63 - 1
"""torch uses 64-bit sizes and bytes; larger ones would also overflow figures computed from them."""
MOST_POWERS = 3
"""Most powers in one size: each multiplies the digits of a number."""
PART_NODES = 2000
_HEAD = ("architecture_hash", "traced_batch", "route", "notes", "experts", "largest_batch")
_TEXTS = ("op", "target", "module", "source", "code")
_NODE_KEYS = frozenset(field.name for field in fields(GraphNode))
_GRAPH_KEYS = frozenset(("format", "version", *_HEAD, "nodes", "subgraphs"))
_CORRECT = "Correct the file, or write it again from the model."
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def graph_to_dict(graph: TorchGraph) -> dict[str, Any]:
    """The graph as the contract's JSON object; profiling metadata is not part of it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "architecture_hash": graph.architecture_hash,
        "traced_batch": graph.traced_batch,
        "route": graph.route,
        "notes": list(graph.notes),
        **({"experts": list(graph.experts)} if graph.experts else {}),
        **({"largest_batch": graph.largest_batch} if graph.largest_batch is not None else {}),
        "nodes": [_node_to_dict(node) for node in graph.nodes],
        "subgraphs": {name: graph_to_dict(body) for name, body in graph.subgraphs.items()},
    }


def graph_to_text(graph: TorchGraph) -> str:
    """The contract's JSON text, one node a line, without building the whole object in memory."""
    whole = graph_to_dict(replace(graph, nodes=(), subgraphs={}))
    head = json.dumps(
        {key: whole[key] for key in ("format", "version", *_HEAD) if key in whole},
        indent=1,
        ensure_ascii=False,
    )
    nodes = ",\n  ".join(json.dumps(_node_to_dict(node), ensure_ascii=False) for node in graph.nodes)
    bodies = json.dumps(
        {name: graph_to_dict(body) for name, body in graph.subgraphs.items()}, ensure_ascii=False
    )
    return f'{head[:-2]},\n "nodes": [\n  {nodes}\n ],\n "subgraphs": {bodies}\n}}\n'


def nodes_in_parts(nodes: Iterable[GraphNode]) -> Iterator[dict[str, Any]]:
    """Nodes as parts for `GraphParts`, some thousand in each."""
    part: list[dict[str, Any]] = []
    for node in nodes:
        part.append(_node_to_dict(node))
        if len(part) == PART_NODES:
            yield {"nodes": part}
            part = []
    yield {"nodes": part}


def graph_from_dict(data: Mapping[str, Any]) -> TorchGraph:
    """The graph of a contract JSON object. Raises InputFault if it breaks the contract."""
    if not isinstance(data, Mapping):
        raise _wrong("graph", data, "an object")
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        raise InputFault(
            "graph",
            f"has format {json_words(data.get('format'))}, version {json_words(data.get('version'))},"
            f" not {FORMAT}, version {VERSION}",
            "Pass a graph file.",
        )
    if unknown := data.keys() - _GRAPH_KEYS:
        raise _unknown_field("", min(unknown), _GRAPH_KEYS)
    if "nodes" not in data:
        raise _missing("nodes")
    parts = GraphParts()
    parts.add(data)
    graph = parts.graph()
    graph.check_order()
    return graph


class GraphParts:
    """Builds a graph from parts of its contract object; equal texts are stored once.

    Later parts replace earlier ones with the same key, but nodes and subgraphs accumulate. Raises InputFault if a part
    breaks the contract.
    """

    def __init__(self) -> None:
        self._nodes: list[GraphNode] = []
        self._head: dict[str, Any] = {}
        self._subgraphs: dict[str, TorchGraph] = {}
        self._interned: dict[Any, Any] = {}

    def add(self, part: Mapping[str, Any]) -> None:
        """Add a part."""
        nodes, bodies = part.get("nodes", []), part.get("subgraphs", {})
        if not isinstance(nodes, list):
            raise _wrong("nodes", nodes, "a list")
        if not isinstance(bodies, Mapping) or not all(isinstance(body, Mapping) for body in bodies.values()):
            raise _wrong("subgraphs", bodies, "an object of graphs")
        intern = self._interned.setdefault
        self._nodes += [
            _node_from_dict(entry, len(self._nodes) + index, intern) for index, entry in enumerate(nodes)
        ]
        self._subgraphs |= {name: graph_from_dict(body) for name, body in bodies.items()}
        self._head |= {key: part[key] for key in _HEAD if key in part}

    def graph(self) -> TorchGraph:
        """The graph of the parts added so far."""
        batch = self._head.get("traced_batch", 1)
        if type(batch) is not int or not 1 <= batch <= MOST_BYTES:
            raise _wrong("traced_batch", batch, "a whole number from 1 on")
        largest = self._head.get("largest_batch")
        if largest is not None and (type(largest) is not int or not 1 <= largest <= LARGEST_WHOLE):
            raise _wrong("largest_batch", largest, f"a whole number from 1 to {LARGEST_WHOLE}")
        route = self._head.get("route", "")
        if route not in ROUTES:
            raise _unknown("route", route, ROUTES)
        texts = {key: self._head.get(key, []) for key in ("notes", "experts")}
        for key, value in texts.items():
            if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                raise _wrong(key, value, "a list of texts")
        return TorchGraph(
            nodes=tuple(self._nodes),
            architecture_hash=str(self._head.get("architecture_hash", "")),
            traced_batch=batch,
            subgraphs=self._subgraphs,
            route=route,
            notes=tuple(texts["notes"]),
            experts=tuple(texts["experts"]),
            largest_batch=largest,
        )


def _node_to_dict(node: GraphNode) -> dict[str, Any]:
    form: dict[str, Any] = {
        "id": node.id,
        "kind": node.kind,
        "op": node.op,
        "target": node.target,
        "inputs": list(node.inputs),
        "module": node.module,
        "shape": None if node.shape is None else list(node.shape),
        "dtype": node.dtype,
        "output_bytes": node.output_bytes,
        "source": node.source,
        "code": node.code,
    }
    if node.arguments:
        form["arguments"] = dict(node.arguments)
    return form


def _node_from_dict(entry: Any, index: int, intern: Any) -> GraphNode:
    """The node of a contract entry; `intern(x, x)` gives the shared object equal to x."""
    where = f"nodes[{index}]"
    if not isinstance(entry, Mapping):
        raise _wrong(where, entry, "an object")
    if not entry.keys() <= _NODE_KEYS:
        unknown = min(entry.keys() - _NODE_KEYS)
        raise _unknown_field(f"{where}.", unknown, _NODE_KEYS)
    name, dtype = entry.get("id"), entry.get("dtype")
    kind: Any = entry.get("kind")
    shape, inputs, size = entry.get("shape"), entry.get("inputs", ()), entry.get("output_bytes", 0)
    if kind not in KINDS:
        raise _unknown(f"{where}.kind", kind, KINDS) if "kind" in entry else _missing(f"{where}.kind")
    if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_ID:
        wanted = f"text of 1 to {LONGEST_ID} characters"
        raise _wrong(f"{where}.id", name, wanted) if "id" in entry else _missing(f"{where}.id")
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(read, str) for read in inputs):
        raise _wrong(f"{where}.inputs", inputs, "a list of ids")
    if not isinstance(shape, (list, tuple, type(None))):
        raise _wrong(f"{where}.shape", shape, "a list or null")
    if type(size) is not int or not 0 <= size <= LARGEST_WHOLE:
        raise _wrong(f"{where}.output_bytes", size, f"a whole number from 0 to {LARGEST_WHOLE}")
    if not isinstance(dtype, (str, type(None))):
        raise _wrong(f"{where}.dtype", dtype, "text or null")
    texts = [entry.get(key, "") for key in _TEXTS]
    for key, text in zip(_TEXTS, texts, strict=True):
        if not isinstance(text, str):
            raise _wrong(f"{where}.{key}", text, "text")
    for text in (name, dtype or "", *texts):
        if not text.isascii() and _LONE_SURROGATE.search(text):
            raise InputFault(where, f"has half a surrogate pair in {quoted(text)}", "Correct the text.")
    op, target, module, source, code = (intern(text, text) for text in texts)
    read = tuple(intern(read_id, read_id) for read_id in inputs)
    arguments = _arguments(entry, len(read), f"{where}.arguments", intern)
    sizes = None if shape is None else tuple(_size(dimension, f"{where}.shape") for dimension in shape)
    return GraphNode(
        intern(name, name), kind, op, target, read, module, intern(sizes, sizes), intern(dtype, dtype), size,
        source, code,
        arguments,
    )  # fmt: skip


def _arguments(entry: Mapping[str, Any], inputs: int, where: str, intern: Any) -> Mapping[str, Any]:
    """The arguments of a contract entry, if any; equal ones are one object, and checked once."""
    given = entry.get("arguments", {})
    try:
        key = json.dumps(given)
    except (TypeError, ValueError, RecursionError):  # invalid JSON, or nested too deeply
        return check_arguments(given, inputs, where)
    cached: list[dict[str, Any]] = intern((inputs, key), [])
    if not cached:
        cached.append(check_arguments(given, inputs, where))
    return cached[0]


def _size(size: Any, where: str) -> int | str:
    """An entry of a shape: a 64-bit number, or a short expression of bounded growth."""
    if type(size) is int and 0 <= size <= MOST_BYTES:
        return size
    if (
        isinstance(size, str)
        and len(size) <= LONGEST_SIZE
        and size.isprintable()
        and size.count("**") <= MOST_POWERS
    ):
        return size
    raise InputFault(
        where,
        f"has the size {json_words(size)}, neither a whole number of 64 bits nor a short expression",
        _CORRECT,
    )


def _wrong(where: str, value: Any, wanted: str) -> InputFault:
    # "is a list, not a list of texts" would contradict itself.
    shown = "" if isinstance(value, (list, dict)) else f"{json_words(value)}, "
    return InputFault(where, f"is {shown}not {wanted}", _CORRECT)


def _missing(where: str) -> InputFault:
    return InputFault(where, "is missing", "Add it; docs/file-formats.md shows an example.")


def _unknown(where: str, value: Any, known: Iterable[str]) -> InputFault:
    return InputFault(
        where, f"is {json_words(value)}, not a known value", suggestion(value, filter(None, known), "values")
    )


def _unknown_field(where: str, name: str, known: Iterable[str]) -> InputFault:
    return InputFault(f"{where}{name}", "is not a known field", suggestion(name, sorted(known), "fields"))
