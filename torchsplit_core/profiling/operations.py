"""The cost model's classes of torch operations by name: views, copies, gathers, arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

NONCONTIGUOUS_VIEWS = frozenset({
    "transpose", "t", "permute", "expand", "expand_as", "select", "slice", "narrow", "split", "chunk",
    "split_with_sizes", "tensor_split", "unbind", "movedim", "swapaxes", "numpy_t", "mT", "diagonal",
    "unfold", "as_strided", "broadcast_to", "broadcast_tensors", "real", "imag",
})  # fmt: skip
"""Views whose elements are not contiguous."""

CONTIGUOUS_VIEWS = frozenset({
    "view", "view_as", "unsqueeze", "squeeze", "unflatten", "alias", "detach", "lift_fresh_copy",
    "getitem", "unsafe_split", "dropout", "feature_dropout", "alpha_dropout", "_unsafe_view",
    "view_as_real", "view_as_complex", "lift_fresh", "sym_size", "sym_numel", "sym_stride",
    "sym_storage_offset", "_assert_scalar", "_assert_async", "_assert_tensor_metadata",
    "sym_constrain_range", "sym_constrain_range_for_size", "item", "_local_scalar_dense", "detach_",
    "squeeze_", "unsqueeze_", "t_", "transpose_", "_set_grad_enabled", "wrap_with_set_grad_enabled",
    "meshgrid", "identity",
})  # fmt: skip
"""Operations that pass memory on as it is (or a number) without moving a tensor."""

VIEWS = NONCONTIGUOUS_VIEWS | CONTIGUOUS_VIEWS

COPY_IF_NONCONTIGUOUS = frozenset({
    "reshape", "flatten", "contiguous", "ravel", "reshape_as",
})  # fmt: skip
"""Free if the source is contiguous, else a copy."""

CREATIONS = frozenset({
    "zeros", "ones", "full", "empty", "arange", "new_zeros", "new_ones", "new_full", "new_empty", "eye",
    "linspace", "rand", "randn",
})  # fmt: skip
"""They write and read nothing."""

GATHERS = frozenset({
    "embedding", "gather", "index_select", "index", "take", "take_along_dim", "embedding_bag",
})  # fmt: skip
"""They read the rows they pick, not the whole table."""

FLOPS_PER_ELEMENT: Mapping[str, float] = {
    "softmax": 5, "log_softmax": 5, "layer_norm": 8, "native_layer_norm": 8, "group_norm": 8,
    "rms_norm": 4, "native_group_norm": 8, "instance_norm": 8, "batch_norm": 2, "native_batch_norm": 2,
    "cudnn_batch_norm": 2, "_native_batch_norm_legit_no_training": 2, "gelu": 8, "silu": 5,
    "sigmoid": 4, "tanh": 5, "exp": 4, "log": 4, "sin": 4, "cos": 4, "erf": 6, "mish": 8,
    "hardswish": 4, "pow": 4, "rsqrt": 2, "sqrt": 2, "addcmul": 2, "cat": 0, "stack": 0, "clone": 0,
    "copy_": 0, "to": 0, "_to_copy": 0, "pad": 0, "constant_pad_nd": 0, "repeat": 0,
    "repeat_interleave": 0, "roll": 0, "flip": 0, "type_as": 0,
}  # fmt: skip
"""FLOPs of an elementwise or normalising operation per element; 1 where not listed.

Assumption: a polynomial or table for each transcendental function. These operations are bound by memory
on every GPU of the catalogue, so the estimate hardly depends on them.
"""
