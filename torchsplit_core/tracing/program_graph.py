"""Converts a torch.export program to a TorchGraph, node by node with the same names."""

from __future__ import annotations

from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import GraphModule, Node

from torchsplit_core.graph.torch_graph import TorchGraph, join_bodies
from torchsplit_core.tracing.call_arguments import CallArguments, function_target
from torchsplit_core.tracing.naming import SymbolNames, module_path, short_name, source_and_code, tensor_bytes
from torchsplit_core.values import GraphNode
from torchsplit_core.values.graph import NodeKind

KINDS: dict[InputKind, NodeKind] = {
    InputKind.USER_INPUT: "input",
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.CUSTOM_OBJ: "constant",
    InputKind.TOKEN: "input",
}


def convert_program(program: ExportedProgram, traced_batch: int) -> TorchGraph:
    """The graph of an exported program, without its architecture hash.

    A tied weight (one storage under several names) is one node: the first name that is read.
    """
    kinds: dict[str, tuple[NodeKind, str]] = {}
    for spec in program.graph_signature.input_specs:
        fixed = isinstance(spec.arg, ConstantArgument)
        kinds[spec.arg.name] = ("constant" if fixed else KINDS[spec.kind], spec.target or "")
    return _Converter(SymbolNames(), traced_batch).graph(
        program.graph_module, kinds, _tied_weights(program), ""
    )


def _tied_weights(program: ExportedProgram) -> dict[str, str]:
    """Placeholder of a weight → the placeholder that represents its storage."""
    read = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    groups: dict[tuple[object, ...], list[str]] = {}
    for spec in program.graph_signature.input_specs:
        value = program.state_dict.get(spec.target or "")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            view = (value.device, value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
            groups.setdefault((value.untyped_storage()._cdata, *view), []).append(spec.arg.name)
    return {
        name: next((n for n in names if n in read), names[0]) for names in groups.values() for name in names
    }


class _Converter:
    """Shares the symbols' names between a graph and the bodies inside it."""

    def __init__(self, symbols: SymbolNames, traced_batch: int) -> None:
        self.symbols, self.traced_batch = symbols, traced_batch

    def graph(
        self, module: GraphModule, kinds: dict[str, tuple[NodeKind, str]], ties: dict[str, str], outer: str
    ) -> TorchGraph:
        """The graph of a module; `outer` is the module path of its owner, for nodes without a path."""
        nodes: list[GraphNode] = []
        subgraphs: dict[str, TorchGraph] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr" or ties.get(node.name, node.name) != node.name:
                continue
            converted = self.node(node, kinds, ties, outer)
            nodes.append(converted)
            bodies: dict[str, TorchGraph] = {}
            for read in node.all_input_nodes:
                body = getattr(module, str(read.target), None) if read.op == "get_attr" else None
                if isinstance(body, GraphModule):
                    bodies[str(read.target)] = self.graph(body, {}, {}, converted.module)
            if bodies:
                subgraphs[node.name] = join_bodies(bodies)
        return TorchGraph(tuple(nodes), traced_batch=self.traced_batch, subgraphs=subgraphs)

    def node(
        self, node: Node, kinds: dict[str, tuple[NodeKind, str]], ties: dict[str, str], outer: str
    ) -> GraphNode:
        """A node with torch's records of it."""
        shape, dtype, size = self.value(node.meta.get("val"))
        kind, target = kinds.get(node.name, ("input", ""))
        module = target.rpartition(".")[0]
        if node.op == "output":
            kind = "output"
        elif node.op == "call_function":
            kind, target, module = "op", function_target(node.target), _module(node) or outer
        call = CallArguments(node, self.symbols.write) if kind in ("op", "output") else None
        source, code = source_and_code(node.meta.get("stack_trace") or "")
        return GraphNode(
            id=node.name,
            kind=kind,
            op=short_name(target) if kind == "op" else "",
            target=target,
            inputs=tuple(ties.get(name, name) for name in call.reads) if call else (),
            module=module,
            shape=shape,
            dtype=dtype,
            output_bytes=size,
            source=source,
            code=code,
            arguments=call.arguments if call else {},
        )

    def value(self, value: Any) -> tuple[tuple[int | str, ...] | None, str | None, int]:
        """Shape, dtype and bytes of a value; of several values only the bytes."""
        if isinstance(value, torch.Tensor):
            shape = tuple(
                size if isinstance(size, int) else self.symbols.write(sympy.srepr(size.node.expr))
                for size in value.shape
            )
            hints = tuple(size if isinstance(size, int) else size.node.hint for size in value.shape)
            dtype = str(value.dtype).removeprefix("torch.")
            return shape, dtype, tensor_bytes(dtype, hints)
        if isinstance(value, (list, tuple)):
            return None, None, sum(self.value(item)[2] for item in value)
        return None, None, 0


def _module(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return module_path(str(list(stack.values())[-1][0])) if stack else ""
