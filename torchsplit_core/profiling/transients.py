"""What an operation allocates besides its output while it runs: working copies and buffers.

Each rule describes observed allocations of PyTorch's CPU kernels (`peak_memory.measure_peak` shows them per operation);
a GPU's kernels differ, and these figures are an assumption, untested on hardware.

- A convolution (oneDNN) copies input and weights into its blocked layout, writes its output there, frees the
  copies and converts the output. Channels are padded to a block. An input of fewer channels than a block is read
  as it is by any kernel but 1 × 1. A transposed convolution converts its output twice. If oneDNN does not pay
  (one small image), the native kernel unfolds the input into columns.
- Max pooling writes the index of every maximum, 8 bytes each.
- Upsampling in two dimensions works on a channels-last copy of its input, and copies back.
- An RMS norm holds the squares of its input, then the normalised input.
- Convolutions, norms and matrix products first copy a non-contiguous input.
- Attention without a fused kernel (not four dimensions, or heads of unequal sizes) holds the scores before and
  after the softmax. The fused one's buffers, one a thread, are left out: some hundred KB.
- An LSTM (oneDNN) holds the four gates and the cell of all steps, a copy of one layer's weights, and the output of
  the layer before; other recurrent layers their gates, at most four times the outputs.
"""

from __future__ import annotations

from math import prod

from torchsplit_core.graph.sizes import Sizes, element_bytes
from torchsplit_core.graph.torch_graph import TorchGraph
from torchsplit_core.profiling.flops import NodeCost, op_name
from torchsplit_core.profiling.operations import CONTIGUOUS_VIEWS, COPY_IF_NONCONTIGUOUS, NONCONTIGUOUS_VIEWS
from torchsplit_core.values import GraphNode

CHANNEL_BLOCK = 8
"""Channels in a block of oneDNN's layouts with AVX2 (nChw8c); 16 with AVX-512, which only matters to convolutions of
fewer than 16 channels."""

NATIVE_CONVOLUTION_ELEMENTS = 20480
"""aten/src/ATen/native/Convolution.cpp, use_mkldnn: one ungrouped image of at most this many elements
under a kernel of at most 3 goes to the native kernel."""

INDEX_BYTES = 8

PERMUTING_VIEWS = frozenset({"transpose", "t", "permute", "movedim", "swapaxes", "numpy_t", "mT"})

ELEMENTWISE = frozenset({
    "relu", "gelu", "silu", "sigmoid", "tanh", "exp", "log", "neg", "abs", "sqrt", "rsqrt", "pow", "erf",
    "sin", "cos", "leaky_relu", "elu", "softplus", "mish", "hardswish", "hardtanh", "relu6", "clamp",
    "add", "sub", "mul", "div", "where", "masked_fill", "clone", "to", "_to_copy",
})  # fmt: skip
"""Operations whose output has the memory order of their first input."""

UPSAMPLING = ("upsample_nearest2d", "upsample_bilinear2d")

_COPIES_INPUTS = (
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "native_group_norm",
    "linear",
    "addmm",
    "bmm",
)


class Layouts:
    """Non-contiguous values, by the views that lead to them.

    A permuted value maps to the shape in which it is contiguous, so that a second permutation back is recognised; None
    stands for a part of a larger value, which no permutation makes contiguous.
    """

    def __init__(self, graph: TorchGraph, sizes: Sizes) -> None:
        self._ordered_shape: dict[str, tuple[int, ...] | None] = {}
        for node in graph.nodes:
            if node.kind == "op":
                self._record_layout(node, op_name(node), sizes)

    def is_noncontiguous(self, name: str) -> bool:
        """Whether a value's elements are not contiguous in its own order."""
        return name in self._ordered_shape

    def _record_layout(self, node: GraphNode, name: str, sizes: Sizes) -> None:
        shape = sizes.shape(node.id)
        source = node.inputs[0] if node.inputs else ""
        source_shape = sizes.shape(source) if source else None
        ordered = self._ordered_shape.get(source, source_shape)
        if name == "scaled_dot_product_attention" and shape is not None and len(shape) == 4:
            # Its kernels write batch × tokens × heads × width, the order that the next layer reads.
            ordered = (shape[0], shape[2], shape[1], shape[3])
            if not _same_order(shape, ordered):
                self._ordered_shape[node.id] = ordered
        elif name in PERMUTING_VIEWS:
            undone = self.is_noncontiguous(source) and shape == ordered
            if not undone and (shape == source_shape or not _same_order(shape, ordered)):
                self._ordered_shape[node.id] = ordered
        elif name in NONCONTIGUOUS_VIEWS:
            self._ordered_shape[node.id] = None
        elif self.is_noncontiguous(source) and name in CONTIGUOUS_VIEWS:
            self._ordered_shape[node.id] = ordered if shape == source_shape else None
        elif name in ELEMENTWISE and self._ordered_shape.get(source) is not None and shape == source_shape:
            self._ordered_shape[node.id] = ordered


def _same_order(shape: tuple[int, ...] | None, ordered: tuple[int, ...] | None) -> bool:
    """Whether the two differ only by dimensions of size 1, which are contiguous anywhere."""
    if shape is None or ordered is None:
        return False
    return [size for size in shape if size != 1] == [size for size in ordered if size != 1]


def is_view(node: GraphNode, cost: NodeCost, layouts: Layouts) -> bool:
    """Whether a value has the memory of its first input: a view, a contiguous reshape, an in-place operation."""
    if not node.inputs:
        return False
    name = op_name(node)
    if name in COPY_IF_NONCONTIGUOUS:
        return not layouts.is_noncontiguous(node.inputs[0])
    in_place = name.endswith("_") and not name.endswith("__")
    return cost.unit == "none" or in_place


def transient_bytes(
    graph: TorchGraph, node: GraphNode, cost: NodeCost, sizes: Sizes, layouts: Layouts
) -> float:
    """Bytes besides inputs and output at the peak of one operation, without the bodies of a cond."""
    name = op_name(node)
    output = sizes.bytes(node.id)
    if cost.unit == "none" or not node.inputs:
        return 0.0
    if cost.unit == "convolution" and len(node.inputs) > 1:
        return _convolution(graph, node, sizes, layouts)
    if cost.unit == "recurrent":
        return _lstm(node, sizes) if name == "lstm" else 4 * output
    if name.startswith("max_pool"):
        return output * INDEX_BYTES / element_bytes(node.dtype)
    if name in UPSAMPLING:
        return output + sizes.bytes(node.inputs[0])
    if name == "rms_norm":
        return sizes.bytes(node.inputs[0])
    if name == "scaled_dot_product_attention":
        return _attention(node, sizes)
    if name in _COPIES_INPUTS or name == "matmul":
        return _copies(node, name, sizes, layouts)
    return 0.0


def _convolution(graph: TorchGraph, node: GraphNode, sizes: Sizes, layouts: Layouts) -> float:
    image, weight = (sizes.shape(name) or () for name in node.inputs[:2])
    read, written = sizes.bytes(node.inputs[0]), sizes.bytes(node.id)
    weights = sizes.bytes(node.inputs[1])
    clone = read if layouts.is_noncontiguous(node.inputs[0]) else 0.0
    out = sizes.shape(node.id) or ()
    if len(image) < 3 or len(weight) != len(image) or len(out) != len(image):
        return clone + read
    kernel, channels = weight[2:], image[1]
    if "transpose" in op_name(node):
        return clone + max(read + weights, 2 * written)
    if _is_native(image, kernel, grouped=weight[1] != channels, scale=sizes.factor(node.inputs[0])):
        columns = 0.0 if prod(kernel) == 1 else read / max(prod(image[2:]), 1) * prod(kernel) * prod(out[2:])
        return clone + columns
    plain = channels < CHANNEL_BLOCK and prod(kernel) > 1
    padded = _padded(out[1])
    blocked_in = 0.0 if plain else read * _padded(channels)
    blocked_weights = weights * _padded(weight[0]) * (1.0 if plain else _padded(weight[1]))
    blocked_out = written * padded
    return clone + max(blocked_in + blocked_weights + blocked_out - written, blocked_out)


def _padded(channels: int) -> float:
    """The size factor of padding channels to whole blocks; grouped ones are not padded."""
    return -(-channels // CHANNEL_BLOCK) * CHANNEL_BLOCK / channels if channels > 1 else 1.0


def _is_native(image: tuple[int, ...], kernel: tuple[int, ...], *, grouped: bool, scale: float) -> bool:
    return (
        image[0] * scale == 1
        and not grouped
        and not (len(kernel) > 1 and kernel[-1] > 3 and kernel[-2] > 3)
        and prod(image) <= NATIVE_CONVOLUTION_ELEMENTS
    )


def _lstm(node: GraphNode, sizes: Sizes) -> float:
    shapes = [sizes.shape(name) or () for name in node.inputs]
    matrices = [name for name, shape in zip(node.inputs[1:], shapes[1:], strict=True) if len(shape) == 2]
    # The first dimension of the state is layers times directions.
    layers = shapes[1][0] if len(shapes) > 1 and len(shapes[1]) == 3 else 1
    outputs = (5 + (layers > 1)) * sizes.bytes(node.id)
    return outputs + sum(map(sizes.bytes, matrices)) / max(layers, 1)


def _attention(node: GraphNode, sizes: Sizes) -> float:
    shapes = [sizes.shape(name) or () for name in node.inputs[:3]]
    if len(shapes) < 3 or min(map(len, shapes)) < 2:
        return 0.0
    query, key, value = shapes
    fused = len(query) == 4 and query[-1] == key[-1] == value[-1]
    scores = sizes.bytes(node.inputs[0]) / query[-1] * key[-2]
    return 0.0 if fused else 2 * scores


def _copies(node: GraphNode, name: str, sizes: Sizes, layouts: Layouts) -> float:
    """Contiguous copies of non-contiguous inputs. A single matrix may be transposed, a batch of them may not."""
    least_rank = {"linear": 3, "matmul": 4, "addmm": 3, "bmm": 4}.get(name, 1)
    read = node.inputs if name == "matmul" else node.inputs[:1]
    return sum(
        sizes.bytes(source)
        for source in read
        if layouts.is_noncontiguous(source) and len(sizes.shape(source) or ()) >= least_rank
    )
