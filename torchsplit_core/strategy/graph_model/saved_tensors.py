"""What an operation saves for its backward pass, by its name, after torch's derivatives.yaml.

An operation not listed counts as saving all its inputs, which is never too little for one of torch's own.
"""

from __future__ import annotations

from typing import Literal

from torchsplit_core.profiling.operations import COPY_IF_NONCONTIGUOUS, CREATIONS, GATHERS, VIEWS

SavedKind = Literal["nothing", "input", "output", "others", "inputs"]
"""`others`: the other ones of the inputs that need a gradient (products); `input`: the first."""

SAVES_OUTPUT = frozenset({
    "softmax", "log_softmax", "_softmax", "_log_softmax", "relu", "relu_", "sigmoid", "tanh", "exp", "sqrt", "rsqrt",
    "threshold", "hardtanh_", "sigmoid_", "tanh_",
})  # fmt: skip

SAVES_INPUT = frozenset({
    "gelu", "silu", "mish", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "batch_norm",
    "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training", "instance_norm", "pow", "log",
    "log2", "sin", "cos", "abs", "clamp", "clamp_min", "clamp_max", "hardswish", "hardsigmoid", "hardtanh", "relu6",
    "leaky_relu", "elu", "softplus", "erf", "max_pool1d", "max_pool2d", "max_pool3d", "square", "norm", "amax", "amin",
    "logsumexp", "cumprod", "prod", "var", "std", "reciprocal",
})  # fmt: skip

SAVES_OTHERS = frozenset({
    "linear", "mm", "bmm", "matmul", "mv", "dot", "vdot", "addmm", "baddbmm", "addbmm", "addmv", "einsum", "mul",
    "mul_", "div", "div_", "where",
})  # fmt: skip

SAVES_NOTHING = frozenset({
    "add", "add_", "sub", "sub_", "rsub", "neg", "cat", "stack", "mean", "sum", "pad", "constant_pad_nd", "to",
    "_to_copy", "clone", "repeat", "repeat_interleave", "roll", "flip", "type_as", "masked_fill", "masked_fill_",
    "copy_", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "upsample_nearest2d", "upsample_bilinear2d", "interpolate", "tril", "triu", "cumsum", "index_put", "scatter",
    "pixel_shuffle", "unfold_backward", "zeros_like", "ones_like", "full_like", "empty_like",
})  # fmt: skip

PASSES_GRADIENT = frozenset({"add", "add_", "sub", "sub_", "cat", "stack", "sum", "mean", "to", "clone"})
"""Operations whose gradient is the incoming one, or a view of it: nothing moves."""

SINGLE_PRECISION = frozenset({
    "softmax", "log_softmax", "layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm", "norm",
    "pow", "exp", "log", "rsqrt", "sum", "prod", "cumsum", "cumprod", "softplus", "reciprocal", "embedding",
})  # fmt: skip
"""Operations that autocast runs in single precision (torch.amp's CUDA op reference); an embedding passes weights on."""


def saved_kind(name: str, unit: str) -> SavedKind:
    """What an operation of that name saves; `unit` is the unit that runs it (`NodeCost.unit`)."""
    if name in SAVES_OTHERS or (unit == "convolution"):
        return "others"
    if name in SAVES_OUTPUT:
        return "output"
    if name in SAVES_INPUT:
        return "input"
    if unit == "none" or name in SAVES_NOTHING | VIEWS | COPY_IF_NONCONTIGUOUS | CREATIONS | GATHERS:
        return "nothing"
    return "inputs"
