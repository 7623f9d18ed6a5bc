"""From the JSON of an exported program (torch's export schema) to a TorchGraph, without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchsplit_core.graph.torch_graph import TorchGraph, join_bodies
from torchsplit_core.tracing.naming import (
    Symbols,
    module_path,
    operation_target,
    short_name,
    source_and_code,
    tensor_bytes,
)
from torchsplit_core.values import GraphNode, InputFault
from torchsplit_core.values.graph import NodeKind

# torch._export.serde.schema.ScalarType
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64",
    9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16",
    29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz",
    33: "float8_e8m0fnu", 34: "uint32", 35: "uint64",
}  # fmt: skip
WEIGHTS: dict[str, tuple[NodeKind, str]] = {
    "parameter": ("parameter", "parameter_name"),
    "buffer": ("buffer", "buffer_name"),
    "tensor_constant": ("constant", "tensor_constant_name"),
    "custom_obj": ("constant", "custom_obj_name"),
}
SCHEMA_MAJOR = 8
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


class ProgramReader:
    """Reads one program. `storages` says for each weight what it occupies, to find tied ones.

    A file that breaks the schema raises KeyError, TypeError, ValueError, IndexError or
    AttributeError, which the caller turns into one fault; an unknown schema raises InputFault.
    """

    def __init__(self, program: dict[str, Any], storages: dict[str, str]) -> None:
        version = program["schema_version"]["major"]
        if version != SCHEMA_MAJOR:
            raise InputFault(
                "schema_version",
                version,
                f"the export schema has major version {SCHEMA_MAJOR}",
                "Export it again with torch 2.13.",
            )
        self.module = program["graph_module"]
        self.storages = storages
        self.symbols = Symbols()
        self.batch = 1

    def graph(self) -> TorchGraph:
        """The whole program, without its architecture hash."""
        kinds = dict(self._kinds())
        inputs = [name for name, (kind, _) in kinds.items() if kind == "input"]
        self.batch = self._traced_batch(inputs)
        return self._graph(self.module["graph"], kinds, "")

    def _kinds(self) -> Iterator[tuple[str, tuple[NodeKind, str]]]:
        """Name of every input of the graph → its kind and, for a weight, its name in the model."""
        for spec in self.module["signature"]["input_specs"]:
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
        """Dimension 0 of the first tensor passed in, as it was in the export; 1 where there is none."""
        values = self.module["graph"]["tensor_values"]
        for name in inputs:
            sizes = values.get(name, {}).get("sizes")
            if sizes:
                return max(_hint(sizes[0]) or 1, 1)
        return 1

    def _graph(self, graph: dict[str, Any], kinds: dict[str, tuple[NodeKind, str]], outer: str) -> TorchGraph:
        """A graph or the body of a cond or while; `outer` is the module path of what holds it."""
        tensors = graph["tensor_values"]
        read = {name for node in graph["nodes"] for entry in node["inputs"] for name in _names(entry["arg"])}
        ties = self._ties(kinds, read)
        passed = list(kinds) or [name for entry in graph["inputs"] for name in _names(entry)]
        nodes = [
            self._leaf(name, *kinds.get(name, ("input", "")), tensors)
            for name in passed
            if ties.get(name, name) == name
        ]
        subgraphs: dict[str, TorchGraph] = {}
        for entry in graph["nodes"]:
            made = self._operation(entry, tensors, ties, outer)
            nodes += made
            bodies: dict[str, TorchGraph] = {}
            for argument in entry["inputs"]:
                body = argument["arg"].get("as_graph")
                if body is not None:
                    bodies[str(body["name"])] = self._graph(body["graph"], {}, made[0].module)
            if bodies:
                subgraphs[made[0].id] = join_bodies(bodies)
        returned = tuple(ties.get(name, name) for entry in graph["outputs"] for name in _names(entry))
        nodes.append(GraphNode(id="output", kind="output", inputs=returned))
        return TorchGraph(tuple(nodes), traced_batch=self.batch, subgraphs=subgraphs)

    def _ties(self, kinds: dict[str, tuple[NodeKind, str]], read: set[str]) -> dict[str, str]:
        """Name of a weight → the name that stands for its storage: the first that is read."""
        groups: dict[str, list[str]] = {}
        for name, (_, target) in kinds.items():
            if target in self.storages:
                groups.setdefault(self.storages[target], []).append(name)
        return {
            name: next((n for n in names if n in read), names[0])
            for names in groups.values()
            for name in names
        }

    def _leaf(self, name: str, kind: NodeKind, target: str, tensors: dict[str, Any]) -> GraphNode:
        shape, dtype, size = self._value(tensors.get(name))
        module = target.rpartition(".")[0]
        return GraphNode(name, kind, "", target, (), module, shape, dtype, size)

    def _operation(
        self, entry: dict[str, Any], tensors: dict[str, Any], ties: dict[str, str], outer: str
    ) -> list[GraphNode]:
        """The operation, and a getitem for each of its outputs where it has several."""
        results = [name for output in entry["outputs"] for name in _names(output)]
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
        inputs = tuple(
            ties.get(read, read) for argument in entry["inputs"] for read in _names(argument["arg"])
        )
        made = GraphNode(
            name, "op", short_name(target), target, inputs, module, shape, dtype, size, source, code
        )
        picks = [
            GraphNode(result, "op", "getitem", "_operator.getitem", (name,), module, *part, source, code)
            for result, part in zip(results, parts, strict=False)
            if not UNUSED.search(result)
        ]
        return [made, *picks]

    def _value(self, meta: dict[str, Any] | None) -> tuple[tuple[int | str, ...] | None, str | None, int]:
        """Shape, dtype and bytes of a tensor; nothing for a value that is none."""
        if meta is None:
            return None, None, 0
        shape = tuple(
            size["as_int"] if "as_int" in size else self.symbols.write(size["as_expr"]["expr_str"])
            for size in meta["sizes"]
        )
        dtype = DTYPES.get(meta["dtype"], "unknown")
        return shape, dtype, tensor_bytes(dtype, tuple(_hint(size) for size in meta["sizes"]))


def _names(argument: dict[str, Any]) -> Iterator[str]:
    """The values an argument names, in order."""
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


def _hint(size: dict[str, Any]) -> int | None:
    """The size in the export; None where only the data decide."""
    if "as_int" in size:
        return int(size["as_int"])
    hint = size["as_expr"].get("hint")
    return int(hint["as_int"]) if hint and "as_int" in hint else None


def _module(stack: str) -> str:
    """The innermost module of "key,path,type;key,path,type"."""
    if not stack:
        return ""
    parts = stack.rsplit(";", 1)[-1].split(",")
    return module_path(",".join(parts[1:-1]))
