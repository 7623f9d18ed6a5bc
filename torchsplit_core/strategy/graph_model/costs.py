"""What every operation of a graph costs a training step: forward, backward, and what it saves between them.

Forward operations and bytes are those of `profiling.flops`. In the backward pass
- a matrix operation computes a product as large as its own for each factor that needs a gradient (fused attention two
  and a half times its forward, FlashAttention-2), and moves as many bytes for each;
- any other operation reads the incoming gradient and what it saved, and writes the gradients it computes; one that
  passes the incoming gradient on moves nothing;
- a value that k operations read sums k gradients: k - 1 times three tensors;
- an embedding writes the gradient of the whole table.
Saved bytes count by storage: a view saves its base; weights and inputs stay anyway.

The width is that of floating-point values: `whole` as traced, `half` two bytes each (FSDP's mixed precision),
`autocast` two bytes after a product and four where autocast computes in single precision; a product saves a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.graph.sizes import Sizes, dtype_name, element_bytes
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.flops import NodeCost, Unit, node_costs, op_name
from torchsplit_core.profiling.transients import INDEX_BYTES, Layouts, is_view, transient_bytes
from torchsplit_core.strategy.cost_model.kernels import BACKWARD_ATTENTION
from torchsplit_core.strategy.graph_model.saved_tensors import PASSES_GRADIENT, SINGLE_PRECISION, saved_kind
from torchsplit_core.values import GraphNode

Width = Literal["whole", "half", "autocast"]
FLOATS = frozenset({"float64", "double", "float32", "float", "float16", "half", "bfloat16"})


@dataclass(frozen=True, slots=True)
class OperationCost:
    """An operation at one batch size and width. Bytes; `matrix_flops` forward; `factors` that need a gradient.

    `saved`: storages (by the value that owns them) with their bytes; matrix operations save those in `products`.
    `working`: bytes beside the saved ones at the peak of its backward pass. `shape`: rows, columns and depth if it is a
    product; `attention` the operations of the fused kernel, of which `causal` does half.
    """

    id: str
    unit: Unit
    matrix_flops: float
    moved_bytes: float
    backward_moved: float
    factors: float
    kernels: int
    backward_kernels: int
    saved: Mapping[str, float]
    working: float
    shape: tuple[float, float, float] | None = None
    attention: bool = False
    causal: bool = False


class GraphCosts:
    """The costs of a graph's operations at a batch size, and which values carry gradients."""

    def __init__(self, graph: TorchGraph, batch: int, width: Width) -> None:
        self.graph, self.width = graph, width
        self.sizes = Sizes(graph, batch)
        self.layouts = Layouts(graph, self.sizes)
        costs = {cost.id: cost for cost in node_costs(graph, batch)}
        self.owner = self._owners(costs)
        self.needs = gradient_values(graph)
        self.widths = self._widths(costs)
        self.products = frozenset(
            self.owner[name]
            for name, cost in costs.items()
            if cost.unit in ("matmul", "convolution", "recurrent")
        )
        self.operations = tuple(
            self._operation(node, costs[node.id]) for node in graph.nodes if node.kind == "op"
        )

    def bytes(self, name: str) -> float:
        """Bytes of a value at this width."""
        node = self.graph.by_id[name]
        if dtype_name(node.dtype) not in FLOATS:
            return self.sizes.bytes(name)
        return self.sizes.bytes(name) * self.widths[name] / element_bytes(node.dtype)

    def _owners(self, costs: Mapping[str, NodeCost]) -> dict[str, str]:
        owner: dict[str, str] = {}
        for node in self.graph.nodes:
            shared = node.kind == "op" and is_view(node, costs[node.id], self.layouts)
            owner[node.id] = owner[node.inputs[0]] if shared else node.id
        return owner

    def _widths(self, costs: Mapping[str, NodeCost]) -> dict[str, float]:
        """Bytes per element of every value."""
        widths: dict[str, float] = {}
        for node in self.graph.nodes:
            width = element_bytes(node.dtype)
            floating = dtype_name(node.dtype) in FLOATS and width > 2
            if not floating or self.width == "whole":
                widths[node.id] = width
            elif self.width == "half":
                widths[node.id] = 2.0
            elif node.kind != "op":
                widths[node.id] = width
            elif costs[node.id].unit in ("matmul", "convolution", "recurrent"):
                widths[node.id] = 2.0
            elif op_name(node) in SINGLE_PRECISION:
                widths[node.id] = width
            else:
                read = [
                    widths[source]
                    for source in node.inputs
                    if dtype_name(self.graph.by_id[source].dtype) in FLOATS and source in self.needs
                ]
                widths[node.id] = max(read, default=width)
        return widths

    def _operation(self, node: GraphNode, cost: NodeCost) -> OperationCost:
        name = op_name(node)
        scale = self._scale(node)
        moved = (cost.bytes_read + cost.bytes_written) * scale
        transient = transient_bytes(self.graph, node, cost, self.sizes, self.layouts) * scale
        fused = name == "scaled_dot_product_attention"
        if node.id not in self.needs:
            return OperationCost(
                node.id, cost.unit, cost.matrix_flops, moved, 0.0, 0.0, cost.kernel_count, 0, {}, transient,
                self._product(node, cost), fused, _causal(node),
            )  # fmt: skip
        wanted = [source for source in dict.fromkeys(node.inputs) if source in self.needs]
        saved = self._saved(node, cost, name)
        grads = sum(self.bytes(source) for source in wanted)
        if cost.unit == "none":
            # A view's gradient is a view; the gradient of a slice is a tensor of zeros with the slice filled.
            backward_moved, factors, kernels = 0.0, 0.0, 0
        elif cost.matrix_flops:
            factors = BACKWARD_ATTENTION if fused else float(min(len(wanted), 2) or 1)
            backward_moved, kernels = factors * moved, 1 if fused else 2
        elif name in PASSES_GRADIENT:
            backward_moved, factors, kernels = 0.0, 0.0, 0
        else:
            backward_moved, factors, kernels = self.bytes(node.id) + sum(saved.values()) + grads, 0.0, 1
        several = max(0, len([user for user in self.graph.users[node.id] if user in self.needs]) - 1)
        backward_moved += 3.0 * several * self.bytes(node.id) if cost.unit != "none" else 0.0
        return OperationCost(
            node.id,
            cost.unit,
            cost.matrix_flops,
            moved,
            backward_moved,
            factors,
            cost.kernel_count,
            kernels * max(1, cost.kernel_count) + several,
            saved,
            self.bytes(node.id) + grads + transient if cost.unit != "none" else 0.0,
            self._product(node, cost),
            fused,
            _causal(node),
        )

    def _scale(self, node: GraphNode) -> float:
        """The factor of the width on the operation's bytes, by its output."""
        width = element_bytes(node.dtype)
        return self.widths[node.id] / width if width and node.shape is not None else 1.0

    def _product(self, node: GraphNode, cost: NodeCost) -> tuple[float, float, float] | None:
        shape = self.sizes.shape(node.id)
        if cost.unit != "matmul" or not shape or not shape[-1]:
            return None
        outputs = self.sizes.elements(node.id)
        return outputs / shape[-1], float(shape[-1]), max(1.0, cost.matrix_flops / (2.0 * outputs))

    def _saved(self, node: GraphNode, cost: NodeCost, name: str) -> dict[str, float]:
        """Storages that the operation saves, with their bytes; weights, inputs and counted storages are free."""
        how = saved_kind(name, cost.unit)
        if how == "nothing":
            return {}
        inputs = list(dict.fromkeys(node.inputs))
        if how == "output":
            chosen = [node.id]
        elif how == "input":
            chosen = inputs[:1]
        elif how == "others":
            chosen = [
                value
                for value in inputs
                if any(other in self.needs for other in node.inputs if other != value)
            ]
            if len(node.inputs) > len(inputs):
                chosen = inputs
        else:
            chosen = [*inputs, node.id]
        saved: dict[str, float] = {}
        for value in chosen:
            owner = self.owner[value]
            if self.graph.by_id[owner].kind != "op":
                continue
            cast = self.width == "autocast" and cost.matrix_flops and self.widths[owner] > 2
            if cast and dtype_name(self.graph.by_id[value].dtype) in FLOATS:
                saved[f"{owner} in half"] = self.bytes(owner) * 2.0 / self.widths[owner]
            elif self._is_copied(value, cost):
                saved[f"{value} in order"] = self.bytes(value)
            else:
                saved[owner] = self.bytes(owner)
        if name.startswith("max_pool"):
            saved[f"{node.id} indices"] = self.sizes.elements(node.id) * INDEX_BYTES
        return saved

    def _is_copied(self, name: str, cost: NodeCost) -> bool:
        """Whether a product gets, and saves, a contiguous copy: batched factors that are not contiguous."""
        return (
            cost.unit == "matmul"
            and self.layouts.is_noncontiguous(name)
            and len(self.sizes.shape(name) or ()) >= 4
            and op_name(self.graph.by_id[cost.id]) == "matmul"
        )


def gradient_values(graph: TorchGraph) -> frozenset[str]:
    """Floating-point weights, and the floating-point values that depend on one."""
    names: set[str] = set()
    for node in graph.nodes:
        floating = dtype_name(node.dtype) in FLOATS or (node.dtype is None and node.kind == "op")
        if floating and (node.kind == "parameter" or any(source in names for source in node.inputs)):
            names.add(node.id)
    return frozenset(names)


def _causal(node: GraphNode) -> bool:
    return node.arguments.get("is_causal") is True
