"""Tensor parallelism of a model that is traced: modules hold this rank's part of weights, exchanges are operators.

torch.export does not record the hooks of DTensor's parallel styles, and a trace fixes the sizes that it sees. So
modules compute with plain tensors of one rank's sizes, and every exchange between ranks is a custom operator with a
gradient. After the trace the parts of the weights become DTensors, for optimizers and checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn.utils.stateless import _reparametrize_module

from torchsplit_core.training.division.experts import holds_experts
from torchsplit_core.values import InputFault

Step = Literal["copy", "sum", "gather", "scatter_sum", "split"]
"""Nothing; all-reduce; all-gather; reduce-scatter; keep this rank's part. Tensors are summed and cut in equal parts."""


@torch.library.custom_op("torchsplit::exchange", mutates_args=())  # type: ignore[untyped-decorator]
def exchange(tensor: Tensor, forward: str, backward: str, dim: int, group: str) -> Tensor:
    """The tensor after the step `forward` over a process group; its gradient passes the step `backward`.

    `dim`: the dimension that is concatenated or cut.
    """
    ranks = _resolve_process_group(group)
    if forward == "sum":
        done = collectives.all_reduce(tensor, "sum", ranks)
    elif forward == "gather":
        done = collectives.all_gather_tensor(tensor.contiguous(), dim, ranks)
    elif forward == "scatter_sum":
        done = collectives.reduce_scatter_tensor(tensor.contiguous(), "sum", dim, ranks)
    elif forward == "split":
        return tensor.chunk(ranks.size(), dim)[ranks.rank()].clone()
    else:
        assert forward in get_args(Step)
        return tensor.clone()
    return collectives.wait_tensor(done).clone()


@exchange.register_fake  # type: ignore[untyped-decorator]
def _(tensor: Tensor, forward: str, backward: str, dim: int, group: str) -> Tensor:
    shape, ranks = list(tensor.shape), _resolve_process_group(group).size()
    if forward == "gather":
        shape[dim] *= ranks
    elif forward in ("scatter_sum", "split"):
        shape[dim] //= ranks
    return tensor.new_empty(shape)


def _save_steps(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.steps = inputs


def _exchange_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    forward, backward, dim, group = ctx.steps
    return exchange(gradient, backward, forward, dim, group), None, None, None, None


exchange.register_autograd(_exchange_gradient, setup_context=_save_steps)


class Exchanges:
    """Exchanges between the ranks of a mesh of one dimension."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.ranks, self.group = mesh.size(), mesh.get_group().group_name

    def __call__(self, tensor: Tensor, forward: Step, backward: Step, dim: int = 0) -> Tensor:
        result: Tensor = exchange(tensor, forward, backward, dim, self.group)
        return result


class TracedParts:
    """Weights of which this rank holds a part while its model is traced.

    `mesh`: the ranks that hold the parts, one dimension of the run's mesh.
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self.mesh, self.exchanges = mesh, Exchanges(mesh)
        self._names = {weight: name for name, weight in model.named_parameters()}
        self._cut: dict[str, tuple[int, torch.Size]] = {}

    def cut(self, module: nn.Module, leaf: str, dim: int, where: str) -> None:
        """Replace a weight by this rank's part. Raises InputFault if it is a part already, or cannot be cut."""
        weight, ranks = module.get_parameter(leaf), self.mesh.size()
        if weight not in self._names:
            raise InputFault(
                where,
                "names a module that another entry cuts",
                "Give each module one style, colwise or rowwise.",
            )
        name = self._names[weight]
        if weight.shape[dim] % ranks:
            raise InputFault(
                where,
                f"cuts {name}, whose size {weight.shape[dim]} {ranks} ranks do not divide",
                "Choose another number of ranks, or leave the module out of the plan.",
            )
        part = weight.detach().chunk(ranks, dim)[self.mesh.get_local_rank()].clone()
        self._cut[name] = dim, weight.shape
        setattr(module, leaf, nn.Parameter(part, weight.requires_grad))

    def restore(self, module: nn.Module, name_in_model: Callable[[str], str]) -> None:
        """Replace the parts in a module by DTensors of the whole weights.

        `name_in_model`: from a weight's name in that module to its name in the model.
        """
        for name, part in list(module.named_parameters()):
            if name_in_model(name) not in self._cut:
                continue
            dim, shape = self._cut[name_in_model(name)]
            stride = torch.empty(shape, device="meta").stride()
            whole = DTensor.from_local(
                part.detach(), self.mesh, [Shard(dim)], run_check=False, shape=shape, stride=stride
            )
            holder, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(holder), leaf, nn.Parameter(whole, part.requires_grad))


class TracedColwise(ParallelStyle):  # type: ignore[misc]
    """A linear layer or an embedding, of whose output each rank computes a part of the width.

    `sequence_dim`: the dimension along which the input is divided; None if each rank has the whole input. `gathered`: a
    module around it has gathered the input already.
    """

    def __init__(self, parts: TracedParts, where: str, sequence_dim: int | None, *, gathered: bool) -> None:
        super().__init__()
        self.parts, self.where, self.sequence_dim, self.gathered = parts, where, sequence_dim, gathered

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.Linear | nn.Embedding):
            raise _unknown_module(self.where, module, "colwise")
        self.parts.cut(module, "weight", 0 if isinstance(module, nn.Linear) else 1, self.where)
        if isinstance(module, nn.Linear) and module.bias is not None:
            self.parts.cut(module, "bias", 0, self.where)
        exchanges, dim = self.parts.exchanges, self.sequence_dim

        def enter(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            x = given[0]
            if dim is not None and not self.gathered:
                x = exchanges(x, "gather", "scatter_sum", dim)
            elif x.is_floating_point() and not self.gathered:
                x = exchanges(x, "copy", "sum")
            return (x, *given[1:])

        module.register_forward_pre_hook(enter)
        return module


class TracedRowwise(ParallelStyle):  # type: ignore[misc]
    """A linear layer whose input's width is divided over the ranks, so that their products are summed.

    `sequence_dim`: the dimension along which each rank keeps a part of the sum; None if each keeps all of it.
    """

    def __init__(self, parts: TracedParts, where: str, sequence_dim: int | None) -> None:
        super().__init__()
        self.parts, self.where, self.sequence_dim = parts, where, sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.Linear):
            raise _unknown_module(self.where, module, "rowwise")
        self.parts.cut(module, "weight", 1, self.where)
        exchanges, dim = self.parts.exchanges, self.sequence_dim

        def forward(x: Tensor) -> Tensor:
            product = F.linear(x, module.weight)
            if dim is None:
                product, bias = exchanges(product, "sum", "copy"), module.bias
            else:
                product = exchanges(product, "scatter_sum", "gather", dim)
                bias = None if module.bias is None else exchanges(module.bias, "copy", "sum")
            return product if bias is None else product + bias.to(product.dtype)

        module.forward = forward
        return module


class TracedSequence(ParallelStyle):  # type: ignore[misc]
    """A module that each rank computes for its part of the sequence, so that gradients of its weights are summed."""

    def __init__(self, parts: TracedParts) -> None:
        super().__init__()
        self.exchanges = parts.exchanges

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        plain = module.forward

        def forward(*given: Any, **named: Any) -> Any:
            weights = {
                name: self.exchanges(weight, "copy", "sum") for name, weight in module.named_parameters()
            }
            with _reparametrize_module(module, weights):
                return plain(*given, **named)

        module.forward = forward
        return module


class TracedScatter(ParallelStyle):  # type: ignore[misc]
    """Each rank keeps its part of the sequence of a module's output, which is the same on all ranks."""

    def __init__(self, parts: TracedParts, sequence_dim: int) -> None:
        super().__init__()
        self.exchanges, self.dim = parts.exchanges, sequence_dim

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.register_forward_hook(
            lambda _, given, output: self.exchanges(output, "split", "gather", self.dim)
        )
        return module


class TracedGather(ParallelStyle):  # type: ignore[misc]
    """Gathers a module's first argument, of which each rank has a part of the sequence.

    `added`: only colwise layers read it, so that each rank has a summand of its gradient.
    """

    def __init__(self, parts: TracedParts, sequence_dim: int, *, added: bool) -> None:
        super().__init__()
        self.exchanges, self.dim, self.added = parts.exchanges, sequence_dim, added

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        backward: Step = "scatter_sum" if self.added else "split"
        module.register_forward_pre_hook(
            lambda _, given: (self.exchanges(given[0], "gather", backward, self.dim), *given[1:])
        )
        return module


@contextmanager
def local_weights(module: nn.Module) -> Iterator[None]:
    """Inside, the module's weights that are DTensors are plain tensors: this rank's parts.

    Modules of divided experts do that themselves.
    """
    weights: Mapping[str, Tensor] = {
        name: weight.to_local()
        for name, weight in module.named_parameters()
        if isinstance(weight, DTensor) and not holds_experts(weight)
    }
    if not weights:
        yield
        return
    with _reparametrize_module(module, weights):
        yield


def _unknown_module(where: str, module: nn.Module, style: str) -> InputFault:
    kind = type(module).__name__
    return InputFault(
        where,
        f"is {style}, but the module is a {kind}, which a pipeline does not cut",
        "Name an nn.Linear, or fix pipeline to 1.",
    )
