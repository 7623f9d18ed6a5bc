"""Properties of operations that matter for cutting a graph."""

from __future__ import annotations

import re
from functools import lru_cache

from torchsplit_core.values import GraphNode

# Operations whose output shares the storage of their first input (the aten view operations).
# `reshape` and `flatten` copy only if the strides require it; `to` and `contiguous`
# usually copy and are left out.
# fmt: off
VIEW_OPERATIONS = frozenset(
    {
        "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten",
        "movedim", "narrow", "permute", "ravel", "real", "reshape", "select", "slice", "split",
        "split_with_sizes", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose",
        "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "_unsafe_view",
        "_reshape_alias", "numpy_T", "mT", "adjoint",
    }
)
# fmt: on

_OVERLOAD = re.compile(r"(?:^|[.:])aten(?:\.|::)(\w+)")


def operation_name(node: GraphNode) -> str:
    """The bare name of the operation: `view` for aten.view.default, `getitem` for operator.getitem."""
    return _bare_name(node.target, node.op)


@lru_cache(maxsize=4096)  # a model has few operations and many nodes of each
def _bare_name(target: str, op: str) -> str:
    for text in (target, op):
        match = _OVERLOAD.search(text)
        if match:
            return match.group(1)
    for text in (target, op):
        if "getitem" in text:
            return "getitem"
    return (target or op).rsplit(".", 1)[-1]


def is_alias(node: GraphNode) -> bool:
    """Whether it picks from or views the value of its first input, and computes nothing."""
    name = operation_name(node)
    return node.kind == "op" and bool(node.inputs) and (name == "getitem" or name in VIEW_OPERATIONS)
