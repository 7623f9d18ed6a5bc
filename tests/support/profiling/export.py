"""A minimal exporter of our own, so that these tests depend on no other room."""

import operator
from functools import cache
from typing import Any

import torch
from torch.export import Dim
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

import sample_models
from torchsplit_core.graph.torch_graph import TorchGraph, join_bodies
from torchsplit_core.values import GraphNode

KINDS = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer", InputKind.CONSTANT_TENSOR: "constant"}


def export(model: torch.nn.Module, args: tuple[Any, ...]) -> torch.export.ExportedProgram:
    shapes = tuple({0: Dim.AUTO} if isinstance(arg, torch.Tensor) else None for arg in args)
    return torch.export.export(model.eval(), args, dynamic_shapes=shapes, strict=False)


@cache
def sample(name: str) -> tuple[Any, torch.nn.Module, torch.export.ExportedProgram]:
    """The client of a small sample, its model and the program of batch 2: read, never changed."""
    client = sample_models.load(name, "small")
    model = client.get_model()
    return client, model, export(model, client.get_example_inputs(2))


def exporter(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], other: Any) -> Any:
    """What `measure` calls in its child under the name "tests.support.profiling.export:exporter"."""
    assert not kwargs
    assert len(other) == 2
    return export(model, args)


def other_exporter(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], other: Any) -> Any:
    """An exporter that names its nodes otherwise than the traced graph."""
    return export(model, args).run_decompositions()


def to_graph(exported: torch.export.ExportedProgram, batch: int = 2) -> TorchGraph:
    kinds = {spec.arg.name: KINDS.get(spec.kind, "input") for spec in exported.graph_signature.input_specs}
    return _convert(exported.graph_module, kinds, batch)


def _convert(module: GraphModule, kinds: dict[str, str], batch: int) -> TorchGraph:
    nodes: list[GraphNode] = []
    bodies: dict[str, dict[str, TorchGraph]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            body = getattr(module, str(node.target))
            if isinstance(body, GraphModule):
                for user in node.users:
                    bodies.setdefault(user.name, {})[node.name] = _convert(body, {}, batch)
                continue
        nodes.append(_node(node, kinds, batch))
    subgraphs = {name: join_bodies(found) for name, found in bodies.items()}
    return TorchGraph(tuple(nodes), traced_batch=batch, subgraphs=subgraphs)


def _node(node: Node, kinds: dict[str, str], batch: int) -> GraphNode:
    value = node.meta.get("val")
    tensors = [
        item for item in (value if isinstance(value, (tuple, list)) else [value]) if torch.is_tensor(item)
    ]
    kind = {"placeholder": kinds.get(node.name, "input"), "output": "output"}.get(node.op, "op")
    target = "getitem" if node.target is operator.getitem else str(node.target)
    return GraphNode(
        id=node.name,
        kind=kind,  # type: ignore[arg-type]
        target=target,
        inputs=_inputs(node),
        shape=tuple(_size(item) for item in value.shape) if torch.is_tensor(value) else None,
        dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else None,
        output_bytes=sum(_hint(item.numel()) * item.element_size() for item in tensors) if tensors else 0,
    )


def _size(size: int | torch.SymInt) -> int | str:
    return size if isinstance(size, int) else str(size.node.expr)


def _inputs(node: Node) -> tuple[str, ...]:
    """The values it reads; one read twice stands twice (all_input_nodes would name it once)."""
    found: list[str] = []
    map_arg((node.args, node.kwargs), lambda item: None if _is_body(item) else found.append(item.name))
    return tuple(found)


def _hint(size: int | torch.SymInt) -> int:
    """The size in the trace, without a guard: int(size) would specialise the symbol."""
    return size if isinstance(size, int) else int(size.node.hint)


def _is_body(node: Node) -> bool:
    return node.op == "get_attr" and isinstance(
        getattr(node.graph.owning_module, str(node.target)), GraphModule
    )
