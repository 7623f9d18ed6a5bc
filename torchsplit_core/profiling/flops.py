"""FLOPs and bytes moved by every operation of a graph, computed without torch and without running it.

Conventions
- A multiply and an add are two FLOPs (as torch.utils.flop_counter counts). `matrix_flops` are those of
  matrix products, convolutions, attention and recurrent layers, which matrix units can do.
- Bytes are those of every tensor read (weights included) and written once, as if nothing stayed in cache
  between two operations. A gather reads the rows it picks, not the whole table.
- Views cost nothing. A reshape or contiguous copies a permuted or sliced source, and is free otherwise.
- Dropout is a view: models are profiled in eval mode.
- A cond costs its more expensive branch. A while costs one iteration: the graph does not have their number.
- The graph lacks the equation of an einsum: its FLOPs are those of a contraction with every index in exactly
  two of the three tensors, except equal leading dimensions (besides the last two of each tensor), which are a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal

from torchsplit_core.graph.sizes import Sizes, dtype_name, element_bytes
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.operations import (
    CONTIGUOUS_VIEWS,
    COPY_IF_NONCONTIGUOUS,
    CREATIONS,
    FLOPS_PER_ELEMENT,
    GATHERS,
    NONCONTIGUOUS_VIEWS,
    VIEWS,
)
from torchsplit_core.values import GraphNode, InputFault
from torchsplit_core.values.errors import quoted

Unit = Literal["convolution", "recurrent", "matmul", "vector", "none"]

LARGEST_BATCH = 65536
"""Larger batch sizes are refused: no sample or library row comes near it."""


@dataclass(frozen=True, slots=True)
class NodeCost:
    """The cost of one operation at one batch size.

    `matrix_flops` is the part of `flops` that matrix units can do; `unit` says which library would run it,
    `kernel_count` how many kernels start (a recurrent layer starts one a time step).
    """

    id: str
    flops: float
    bytes_read: float
    bytes_written: float
    kernel_count: int
    matrix_flops: float = 0.0
    unit: Unit = "vector"
    dtype: str = "float32"


def op_name(node: GraphNode) -> str:
    """The bare name: "linear" of "torch.ops.aten.linear.default", "cond" of the higher-order one."""
    target = (node.target or node.op).strip("<>").replace("built-in function ", "")
    parts = target.replace("::", ".").removeprefix("torch.").removeprefix("ops.").split(".")
    if len(parts) > 1 and parts[0] in ("aten", "prims", "higher_order", "prim"):
        return parts[1]
    return parts[-2] if len(parts) > 2 else parts[-1]


def node_costs(graph: TorchGraph, batch_size: int) -> tuple[NodeCost, ...]:
    """The cost of every op node, in the order of the graph.

    Raises InputFault for a batch size that is not a positive integer of at most 65,536, or for a size that cannot be
    computed (see `graph.sizes`).
    """
    check_batch_size(batch_size)
    return _costs(graph, Sizes(graph, batch_size))


def check_batch_size(batch_size: object) -> int:
    """The batch size if it is one; InputFault otherwise."""
    if (
        isinstance(batch_size, bool)
        or not isinstance(batch_size, int)
        or not 1 <= batch_size <= LARGEST_BATCH
    ):
        raise InputFault(
            "batch size",
            f"is {quoted(batch_size)}, not a whole number from 1 to {LARGEST_BATCH:,}",
            "Give for example 8.",
        )
    return batch_size


def _costs(graph: TorchGraph, sizes: Sizes) -> tuple[NodeCost, ...]:
    noncontiguous: set[str] = set()
    costs = []
    for node in graph.nodes:
        if node.kind != "op":
            continue
        name = op_name(node)
        first_noncontiguous = bool(node.inputs) and node.inputs[0] in noncontiguous
        if name in NONCONTIGUOUS_VIEWS or (name in CONTIGUOUS_VIEWS and first_noncontiguous):
            noncontiguous.add(node.id)
        bodies = branches(graph, node)
        if bodies:
            costs.append(_most_expensive_branch(node, bodies, sizes))
        elif _is_free(graph, node, name, copies=first_noncontiguous):
            costs.append(NodeCost(node.id, 0.0, 0.0, 0.0, 0, unit="none"))
        else:
            costs.append(_checked_cost(graph, node, name, sizes))
    return tuple(costs)


def branches(graph: TorchGraph, node: GraphNode) -> tuple[TorchGraph, ...]:
    """The bodies of a cond or while."""
    return tuple(graph.bodies(node.id).values())


def _is_free(graph: TorchGraph, node: GraphNode, name: str, *, copies: bool) -> bool:
    if name in VIEWS or (name in COPY_IF_NONCONTIGUOUS and not copies):
        return True
    if (
        name in ("to", "_to_copy", "type_as") and node.inputs
    ):  # an eager `to` of the same dtype returns its input
        return dtype_name(graph.by_id[node.inputs[0]].dtype) == dtype_name(node.dtype)
    return node.shape is None and not node.output_bytes and "aten" not in node.target


def _most_expensive_branch(node: GraphNode, bodies: tuple[TorchGraph, ...], sizes: Sizes) -> NodeCost:
    totals = []
    for body in bodies:
        inner = _costs(body, Sizes(body, sizes.batch_size, sizes.symbols))
        heaviest = max(inner, key=lambda cost: cost.matrix_flops, default=None)
        totals.append(
            NodeCost(
                node.id,
                sum(cost.flops for cost in inner),
                sum(cost.bytes_read for cost in inner),
                sum(cost.bytes_written for cost in inner),
                sum(cost.kernel_count for cost in inner),
                sum(cost.matrix_flops for cost in inner),
                heaviest.unit if heaviest else "none",
                heaviest.dtype if heaviest else "float32",
            )
        )
    return max(totals, key=lambda cost: (cost.flops, cost.bytes_read + cost.bytes_written))


def _checked_cost(graph: TorchGraph, node: GraphNode, name: str, sizes: Sizes) -> NodeCost:
    """The cost of one operation. Raises InputFault for impossible shapes, which only an untraced graph has."""
    try:
        return _cost(graph, node, name, sizes)
    except (IndexError, ArithmeticError, ValueError) as error:
        if isinstance(error, InputFault):
            raise
        raise InputFault(
            f"graph node {node.id!r}", f"reads shapes that {name} cannot take", "Trace the model again."
        ) from error


def _cost(graph: TorchGraph, node: GraphNode, name: str, sizes: Sizes) -> NodeCost:
    written = sizes.bytes(node.id)
    read = sum(sizes.bytes(source) for source in dict.fromkeys(node.inputs))
    if name in GATHERS and node.inputs:
        read = written + sum(sizes.bytes(source) for source in dict.fromkeys(node.inputs[1:]))
    elif name in CREATIONS:
        read = 0.0
    dtype = dtype_name(node.dtype) or _first_dtype(graph, node)
    outputs = sizes.elements(node.id) or written / element_bytes(dtype)
    matrix, unit, kernels = _matrix_work(graph, node, name, sizes, outputs)
    if unit != "vector":
        bias = outputs if name in ("addmm", "baddbmm", "addbmm") else 0.0
        return NodeCost(node.id, matrix + bias, read, written, kernels, matrix, unit, dtype)
    moved = max(outputs, *(sizes.elements(source) for source in node.inputs), 0.0) if node.inputs else outputs
    per_element = FLOPS_PER_ELEMENT.get(name, 0 if name in CREATIONS | GATHERS | COPY_IF_NONCONTIGUOUS else 1)
    return NodeCost(node.id, per_element * moved, read, written, 1, 0.0, "vector", dtype)


def _first_dtype(graph: TorchGraph, node: GraphNode) -> str:
    dtypes = (dtype_name(graph.by_id[source].dtype) for source in node.inputs)
    return next((dtype for dtype in dtypes if dtype), "float32")


def _matrix_work(
    graph: TorchGraph, node: GraphNode, name: str, sizes: Sizes, outputs: float
) -> tuple[float, Unit, int]:
    """Matrix FLOPs, the unit that does them and the number of kernels."""
    shapes = [sizes.shape(source) or () for source in node.inputs]
    if name in ("linear", "mm", "bmm", "matmul", "mv", "dot", "vdot") and len(shapes) >= 2:
        return 2 * outputs * shapes[0][-1], "matmul", 1
    if name in ("addmm", "baddbmm", "addbmm", "addmv") and len(shapes) >= 3:
        return 2 * outputs * shapes[1][-1], "matmul", 1
    if name == "einsum" and len(shapes) >= 2:
        return _einsum_flops(node, sizes, shapes, outputs), "matmul", 2 * len(shapes) - 3
    if name == "scaled_dot_product_attention" and len(shapes) >= 3:
        query, key, value = shapes[:3]
        rows = sizes.elements(node.inputs[0]) / query[-1]
        return 2 * rows * key[-2] * (query[-1] + value[-1]), "matmul", 1
    if name == "experts" and len(shapes) > 2:
        # torchsplit::experts (rows, counts, weights): each row passes all weights of its expert.
        rows = sizes.elements(node.inputs[0]) / shapes[0][-1]
        return 2 * rows * sum(prod(shape[1:]) for shape in shapes[2:]), "matmul", len(shapes) - 2
    if "conv" in name and len(shapes) >= 2:
        per_value = prod(shapes[1][1:])  # forward: inner/groups × kernel; transposed: outer/groups × kernel
        backwards = "transpose" in name
        touched = sizes.elements(node.inputs[0]) if backwards else outputs
        return 2 * touched * per_value, "convolution", 1
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and len(shapes) >= 3:
        return _recurrent_work(node, sizes, shapes)
    return 0.0, "vector", 1


def _einsum_flops(node: GraphNode, sizes: Sizes, shapes: list[tuple[int, ...]], outputs: float) -> float:
    out = sizes.shape(node.id) or ()
    batch = 1
    # The last two dimensions of each tensor are assumed to be the matrices, as in every batched product.
    for left, right, result in zip(shapes[0][:-2], shapes[1][:-2], out[:-2], strict=False):
        if not left == right == result:
            break
        batch *= left
    product = sizes.elements(node.inputs[0]) * sizes.elements(node.inputs[1]) * outputs
    return 2 * sqrt(product / batch)


def _recurrent_work(node: GraphNode, sizes: Sizes, shapes: list[tuple[int, ...]]) -> tuple[float, Unit, int]:
    """Every weight matrix multiplies every token once; one kernel a time step, layer and direction."""
    tokens = sizes.elements(node.inputs[0]) / shapes[0][-1]
    weights = sum(prod(shape) for shape in shapes[1:] if len(shape) == 2)
    state_shape = shapes[1]  # layers × directions, batch, width
    batch = state_shape[1] * sizes.factor(node.inputs[0]) if len(state_shape) == 3 else 1.0
    steps = max(round(tokens / batch), 1) * (state_shape[0] if len(state_shape) == 3 else 1)
    return 2 * tokens * weights, "recurrent", steps + 1
