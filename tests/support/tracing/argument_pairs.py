"""Pairs of models that differ in one argument, by the kind of the argument: all the kinds that exports yield.

`benchmarks.argument_kinds` lists the kinds that the exports of the 64 architectures of the coverage benchmark
yield; `KINDS_OF_THE_BENCHMARK` is its answer, and every kind of it has pairs here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

KINDS_OF_THE_BENCHMARK = (
    "operator keyword: bool", "operator keyword: device", "operator keyword: dtype", "operator keyword: float",
    "operator keyword: int", "operator keyword: layout", "operator keyword: text",
    "operator: bool", "operator: device", "operator: dtype", "operator: float", "operator: infinity",
    "operator: int", "operator: list of float", "operator: list of int", "operator: list of int and symbolic int",
    "operator: list of none and tensor", "operator: list of nothing", "operator: list of tensor", "operator: none",
    "operator: symbolic bool", "operator: symbolic int", "operator: tensor", "operator: text",
    "function: int", "function: several", "function: symbolic bool", "function: symbolic int",
)  # fmt: skip
"""What `python -m benchmarks.argument_kinds` lists, with torch 2.13 and transformers 5.23."""


class Calls(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


@dataclass(frozen=True)
class Pair:
    """Two models on inputs of one shape that differ in one argument; results of one shape where that can be."""

    name: str
    kind: str
    one: Callable[..., Any]
    other: Callable[..., Any]
    inputs: tuple[Tensor, ...]


X = torch.ones(2, 4, 8)
IMAGE = torch.ones(2, 3, 16, 16)
SQUARE = torch.ones(2, 4, 4)
IDS = torch.ones(2, 6, dtype=torch.int64)
HEADS = torch.ones(2, 2, 6, 8)
MASK = torch.ones(2, 4, 8, dtype=torch.bool)


def _pool(kernel: int, **settings: Any) -> Callable[..., Any]:
    return lambda x: functional.max_pool2d(x, kernel, stride=1, **settings)


def _convolution(**settings: Any) -> Callable[..., Any]:
    return lambda x: functional.conv2d(x, torch.ones(3, 1, 3, 3), groups=3, **settings)


TWELVE = (
    Pair("pool kernel", "operator: list of int", _pool(3, padding=1), _pool(5, padding=2), (IMAGE,)),
    Pair(
        "dilation", "operator: list of int", _convolution(padding=1), _convolution(padding=2, dilation=2),
        (IMAGE,),
    ),
    Pair(
        "is_causal", "operator: bool", lambda x: functional.scaled_dot_product_attention(x, x, x),
        lambda x: functional.scaled_dot_product_attention(x, x, x, is_causal=True), (HEADS,),
    ),
    Pair("softmax dim", "operator: int", lambda x: x.softmax(1), lambda x: x.softmax(2), (X,)),
    Pair(
        "transposed dims", "operator: int", lambda x: x.transpose(1, 2), lambda x: x.transpose(2, 1).mT.mT,
        (SQUARE,),
    ),
    Pair(
        "permuted dims", "operator: list of int", lambda x: x.permute(0, 1, 2), lambda x: x.permute(0, 2, 1),
        (SQUARE,),
    ),
    Pair(
        "order of cat", "operator: list of tensor", lambda x, y: torch.cat([x, y], 1),
        lambda x, y: torch.cat([y, x], 1), (X, X.clone()),
    ),
    Pair(
        "gelu's approximation", "operator keyword: text", lambda x: functional.gelu(x),
        lambda x: functional.gelu(x, approximate="tanh"), (X,),
    ),
    Pair("power", "operator: int", lambda x: x**2, lambda x: x**3, (X,)),
    Pair(
        "epsilon", "operator: float", lambda x: functional.layer_norm(x, (8,), eps=1e-5),
        lambda x: functional.layer_norm(x, (8,), eps=1e-12), (X,),
    ),
    Pair(
        "slope", "operator: float", lambda x: functional.leaky_relu(x, 0.1),
        lambda x: functional.leaky_relu(x, 0.2), (X,),
    ),
    Pair(
        "count_include_pad", "operator: bool", lambda x: functional.avg_pool2d(x, 3, 1, 1),
        lambda x: functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (IMAGE,),
    ),
)  # fmt: skip

MORE = (
    Pair(
        "pin_memory of full",
        "operator keyword: bool",
        lambda x: x + torch.ops.aten.full.default([8], 1.0, pin_memory=False),
        lambda x: x + torch.ops.aten.full.default([8], 1.0),
        (X,),
    ),
    Pair(
        "device of full",
        "operator keyword: device",
        lambda x: x + torch.ops.aten.full.default([8], 1.0, device="cpu"),
        lambda x: x + torch.ops.aten.full.default([8], 1.0),
        (X,),
    ),
    Pair(
        "dtype of the sum", "operator keyword: dtype", lambda x: x.sum(1, dtype=torch.float64).float(),
        lambda x: x.sum(1, dtype=torch.float32).float(), (X,),
    ),
    Pair(
        "scale",
        "operator keyword: float",
        lambda x: functional.scaled_dot_product_attention(x, x, x, scale=0.5),
        lambda x: functional.scaled_dot_product_attention(x, x, x, scale=0.25),
        (HEADS,),
    ),
    Pair(
        "alpha", "operator keyword: int", lambda x, y: torch.add(x, y, alpha=2),
        lambda x, y: torch.add(x, y, alpha=3), (X, X.clone()),
    ),
    Pair(
        "layout of full",
        "operator keyword: layout",
        lambda x: x + torch.ops.aten.full.default([8], 1.0, layout=torch.strided),
        lambda x: x + torch.ops.aten.full.default([8], 1.0),
        (X,),
    ),
    Pair(
        "rounding mode", "operator keyword: text", lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"), (X, X.clone()),
    ),
    Pair(
        "memory format",
        "operator keyword: memory format",
        lambda x: x.clone(memory_format=torch.channels_last) + 1,
        lambda x: x.clone(memory_format=torch.contiguous_format) + 1,
        (IMAGE,),
    ),
    Pair(
        "sum keeps", "operator: bool", lambda x: x.cumsum(1).sort(1, False)[0],
        lambda x: x.cumsum(1).sort(1, True)[0], (X,),
    ),
    Pair(
        "to a device",
        "operator: device",
        lambda x: torch.ops.aten.to.device(x, "cpu", torch.float32, False, True),
        lambda x: torch.ops.aten.to.device(x, "cpu", torch.float32, True, True),
        (X,),
    ),
    Pair(
        "dtype of softmax", "operator: dtype", lambda x: torch.softmax(x, 1, dtype=torch.float64).float(),
        lambda x: torch.softmax(x, 1).float().double().float(), (X,),
    ),
    Pair(
        "filled with infinity", "operator: infinity", lambda x, m: x.masked_fill(m, inf),
        lambda x, m: x.masked_fill(m, -inf), (X, MASK),
    ),
    Pair(
        "filled with NaN", "operator: NaN", lambda x, m: x.masked_fill(m, float("nan")),
        lambda x, m: x.masked_fill(m, inf), (X, MASK),
    ),
    Pair("whole or not", "operator: float", lambda x: x + 1, lambda x: x + 1.5, (X,)),
    Pair(
        "scale factors",
        "operator: list of float",
        lambda x: functional.interpolate(x, scale_factor=(2.0, 2.0)),
        lambda x: functional.interpolate(x, scale_factor=(2.01, 2.0)),
        (IMAGE,),
    ),
    Pair("flipped dims", "operator: list of int", lambda x: x.flip([1]), lambda x: x.flip([2]), (X,)),
    Pair(
        "view", "operator: list of int and symbolic int", lambda x: x.view(x.shape[0], 4, 8).tanh(),
        lambda x: x.view(x.shape[0], -1, 8).tanh(), (X,),
    ),
    Pair(
        "place in an index",
        "operator: list of none and tensor",
        lambda x, i: torch.ops.aten.index.Tensor(x, [None, i]),
        lambda x, i: torch.ops.aten.index.Tensor(x, [None, None, i]),
        (SQUARE, torch.arange(4)),
    ),
    Pair(
        "no dims", "operator: list of nothing", lambda x: x + torch.zeros([]), lambda x: x + torch.zeros([1]),
        (X,),
    ),
    Pair(
        "stack", "operator: list of tensor", lambda x, y: torch.stack([x, y]),
        lambda x, y: torch.stack([y, x]), (X, X.clone()),
    ),
    Pair(
        "clamp below or above", "operator: none", lambda x: torch.ops.aten.clamp.default(x, None, 0.5),
        lambda x: torch.ops.aten.clamp.default(x, 0.5), (X,),
    ),
    Pair(
        "slot of a tensor", "operator: tensor", lambda x, y: torch.ops.aten.clamp.Tensor(x, y, None),
        lambda x, y: torch.ops.aten.clamp.Tensor(x, None, y), (X, X.clone()),
    ),
    Pair("operands", "operator: tensor", lambda x, y: x - y, lambda x, y: y - x, (X, X.clone())),
    Pair(
        "end of a range", "operator: symbolic int", lambda x: x + torch.arange(x.shape[0])[0],
        lambda x: x + torch.arange(x.shape[0] * 2)[0], (X,),
    ),
    Pair(
        "equation", "operator: text", lambda x, y: torch.einsum("bij,bjk->bik", x, y),
        lambda x, y: torch.einsum("bij,bkj->bik", x, y), (SQUARE, SQUARE.clone()),
    ),
    Pair(
        "padding mode", "operator: text", lambda x: functional.pad(x, (1, 1), "reflect"),
        lambda x: functional.pad(x, (1, 1), "replicate"), (X,),
    ),
    Pair(
        "factor of a size",
        "function: int",
        lambda x: x.sum() + torch.full((x.shape[0] * 6,), 1.0).reshape(-1)[0],
        lambda x: x.sum() + torch.full((x.shape[0] * 7,), 1.0).reshape(-1)[0],
        (X,),
    ),
    Pair(
        "which of several", "function: several", lambda x: x.chunk(2, 1)[0].tanh(),
        lambda x: x.chunk(2, 1)[1].tanh(), (X,),
    ),
    Pair(
        "embedding's padding",
        "operator: int",
        lambda i: functional.embedding(i, torch.ones(10, 4), padding_idx=0),
        lambda i: functional.embedding(i, torch.ones(10, 4), padding_idx=1),
        (IDS,),
    ),
    Pair(
        "complex factor", "operator: complex", lambda x: torch.view_as_real(x * 2j),
        lambda x: torch.view_as_real(x * 3j), (X,),
    ),
    Pair("diagonal", "operator: int", lambda x: x.tril(0), lambda x: x.tril(1), (X,)),
    Pair(
        "shifts", "operator: list of int", lambda x: x.roll((1, 2), (1, 2)), lambda x: x.roll((2, 1), (1, 2)),
        (X,),
    ),
    Pair("largest", "operator: bool", lambda x: x.topk(2)[0], lambda x: x.topk(2, largest=False)[0], (X,)),
    Pair(
        "string of side", "operator keyword: text", lambda x, y: torch.searchsorted(x, y, side="left"),
        lambda x, y: torch.searchsorted(x, y, side="right"), (X, X.clone()),
    ),
)  # fmt: skip


def _checked(check: Callable[[Any], Any]) -> Callable[..., Any]:
    """A size that the data decide, and what is asserted of it."""

    def forward(x: Tensor, ids: Tensor) -> Tensor:
        size = ids.sum().item()
        torch._check(check(size))
        return x + size

    return forward


ASSERTED = (
    Pair(
        "asserted", "operator: symbolic bool", _checked(lambda n: n >= 3), _checked(lambda n: n >= 4),
        (X, IDS),
    ),
    Pair(
        "asserted not", "function: symbolic bool", _checked(lambda n: torch.sym_not(n == 3)),
        _checked(lambda n: torch.sym_not(n == 4)), (X, IDS),
    ),
    Pair(
        "asserted of a product", "function: symbolic int", _checked(lambda n: n * 2 >= 3),
        _checked(lambda n: n * 4 >= 3), (X, IDS),
    ),
)  # fmt: skip
PAIRS = (*TWELVE, *MORE, *ASSERTED)
