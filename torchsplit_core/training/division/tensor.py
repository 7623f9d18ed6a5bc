"""Tensor parallelism by a client's plan, with replacements for DDP and ZeRO-1, which support whole weights only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from torchsplit_core.training.division.experts import EXPERT, holds_experts
from torchsplit_core.training.division.traced import (
    TracedColwise,
    TracedGather,
    TracedParts,
    TracedRowwise,
    TracedScatter,
    TracedSequence,
)
from torchsplit_core.values import InputFault, quoted, suggestion
from torchsplit_core.values.training import ParallelConfig

SEQUENCE_DIM = 1
"""The sequence dimension of hidden states: batch × sequence × width."""


class ScatterSequence(ParallelStyle):  # type: ignore[misc]
    """Divides a module's output, which is equal on all ranks: each rank goes on with its part of the sequence."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def scatter(_: nn.Module, given: Any, output: torch.Tensor) -> torch.Tensor:
            size = output.shape[SEQUENCE_DIM]
            if size % device_mesh.size():
                raise InputFault(
                    "the strategy's sequence_parallel",
                    f"divides sequences over {device_mesh.size()} ranks, but these have {size} positions",
                    "Pad the samples to a multiple, or fix sequence_parallel to false.",
                )
            whole = DTensor.from_local(output, device_mesh, [Replicate()], run_check=False)
            part: torch.Tensor = whole.redistribute(placements=[Shard(SEQUENCE_DIM)]).to_local()
            return part

        module.register_forward_hook(scatter)
        return module


class GatherSequence(ParallelStyle):  # type: ignore[misc]
    """Gathers a module's first argument, of which each rank has a part of the sequence."""

    def __init__(self, *, as_dtensor: bool) -> None:
        super().__init__()
        self.as_dtensor = as_dtensor
        """For column-wise products inside the module: their gradients are summed and scattered in one exchange."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gather(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            part = DTensor.from_local(given[0], device_mesh, [Shard(SEQUENCE_DIM)], run_check=False)
            whole = part.redistribute(placements=[Replicate()])
            return (whole if self.as_dtensor else whole.to_local(), *given[1:])

        module.register_forward_pre_hook(gather)
        return module


MOST_UNLIKE = 0.01
"""Share by which the norms of equal gradients may differ, since devices add in different orders."""
TENSOR_STYLES = ("colwise", "rowwise")
SEQUENCE_STYLES = ("sequence", "scatter", "gather")
"""Styles that apply only with sequence parallelism."""


def divides_sequences(choices: ParallelConfig, plan: Mapping[str, str] | None) -> bool:
    """Whether tensor parallelism divides the sequence between its products: as requested, if the plan says how."""
    return choices.tensor > 1 and choices.sequence_parallel and "sequence" in (plan or {}).values()


def apply_tensor_parallel(
    model: nn.Module,
    mesh: DeviceMesh,
    plan: Mapping[str, str] | None,
    choices: ParallelConfig,
    parts: TracedParts | None = None,
) -> None:
    """Divide the modules that the plan names over the tensor ranks; with sequence parallelism, also what lies between.

    `parts`: holds this rank's weights of a model that is traced afterwards; None for a model that is not traced.
    Raises InputFault if there is no plan, a style is unknown, or a size cannot be divided.
    """
    if not plan:
        raise InputFault(
            "the strategy's tensor",
            f"is {mesh.size()}, but the client has no tensor_plan, which says how its modules are cut",
            "Give it one, for example {'layers.*.up': 'colwise'}, or fix tensor to 1.",
        )
    for name, style in plan.items():
        if style not in (*TENSOR_STYLES, *SEQUENCE_STYLES):
            raise InputFault(
                f"tensor_plan[{name!r}]",
                f"unknown style {quoted(style)}",
                suggestion(style, (*TENSOR_STYLES, *SEQUENCE_STYLES), "styles"),
            )
    divided = divides_sequences(choices, plan)
    if parts:
        styles = {name: _traced_style(name, plan, parts, divided=divided) for name in plan}
    else:
        styles = {
            name: _style(name, plan) if divided else _plain_style(style) for name, style in plan.items()
        }
    parallelize_module(model, mesh, {name: style for name, style in styles.items() if style})


def _plain_style(style: str) -> ParallelStyle | None:
    """The style without sequence parallelism; None if nothing is to be done, since each rank has the whole sequence."""
    return {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}.get(style, lambda: None)()


def _style(name: str, plan: Mapping[str, str]) -> ParallelStyle:
    """The style of a module with sequence parallelism: between products each rank has a part of the sequence."""
    style, part = plan[name], Shard(SEQUENCE_DIM)
    if style == "gather":
        return GatherSequence(as_dtensor=_has_columns(name, plan))
    if style == "sequence":
        return SequenceParallel(sequence_dim=SEQUENCE_DIM, use_local_output=True)
    if style == "scatter":
        return ScatterSequence()
    if style == "colwise":
        return ColwiseParallel(input_layouts=part)
    return RowwiseParallel(output_layouts=part)


def _traced_style(
    name: str, plan: Mapping[str, str], parts: TracedParts, *, divided: bool
) -> ParallelStyle | None:
    """The style of a module of a model that is traced. `divided`: the result of `divides_sequences`."""
    style, where, dim = plan[name], f"tensor_plan[{name!r}]", SEQUENCE_DIM if divided else None
    if style == "colwise":
        around = (other for other, cut in plan.items() if cut == "gather" and name.startswith(f"{other}."))
        return TracedColwise(parts, where, dim, gathered=divided and any(around))
    if style == "rowwise":
        return TracedRowwise(parts, where, dim)
    if dim is None:
        return None
    if style == "sequence":
        return TracedSequence(parts)
    if style == "scatter":
        return TracedScatter(parts, dim)
    return TracedGather(parts, dim, added=_has_columns(name, plan))


def _has_columns(name: str, plan: Mapping[str, str]) -> bool:
    """Whether products inside the module are cut by columns."""
    return any(other.startswith(f"{name}.") and style == "colwise" for other, style in plan.items())


def check_replicated_gradients(
    model: nn.Module, group: dist.ProcessGroup, name_in_model: Callable[[str], str]
) -> None:
    """Raises InputFault if the ranks of a tensor group have different gradients of a weight that each holds whole.

    Then the plan leaves out a module that works on only a part of the sequence or of the width. `name_in_model`: from
    a weight's name in `model` to its name in the user's.
    """
    names, norms = [], []
    for name, parameter in model.named_parameters():
        cut = isinstance(parameter, DTensor) and "tensor" in (parameter.device_mesh.mesh_dim_names or ())
        if parameter.grad is not None and not cut:
            names.append(name_in_model(name.replace(_CHECKPOINT_PREFIX, "")))
            norms.append(local_tensor(parameter.grad).norm().double())
    if not norms:
        return
    mine = torch.stack(norms)
    every = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(every, mine, group=group)
    low, high = torch.stack(every).amin(0), torch.stack(every).amax(0)
    # Gradients that are not finite are another fault, reported elsewhere.
    unlike = (high - low > MOST_UNLIKE * high) & high.isfinite()
    if unlike.any():
        place = int(unlike.nonzero()[0])
        raise InputFault(
            "the client's tensor_plan",
            f"leaves {names[place]} whole on all tensor ranks, but their gradients of it differ: its module works on a "
            "part of the sequence or of the width",
            "Give its module the style sequence, or gather its input.",
        )


class GradientAverage:
    """Averages the gradients of a model over data ranks while its backward pass runs, as DDP does for whole weights.

    DDP accepts no DTensors. Gradients of divided experts already include the rows of all ranks that share the experts,
    so they are summed only over the ranks with the same experts. `last`: whether the next backward pass is the last of
    its step, in which ranks exchange. A pipeline does not know it, and calls `exchange_all` after the last pass.
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self.mesh, self.group, self.last = mesh, mesh["data"].get_group(), True
        self._pending: list[tuple[dist.Work, torch.Tensor]] = []
        self._weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in self._weights:
            parameter.register_post_accumulate_grad_hook(self._begin)

    def exchange_all(self) -> None:
        """Begin the exchange of all gradients."""
        self.last = True
        for parameter in self._weights:
            self._begin(parameter)

    def _begin(self, parameter: torch.Tensor) -> None:
        if self.last and parameter.grad is not None:
            gradient = local_tensor(parameter.grad)
            group = self.mesh["copy"].get_group() if holds_experts(parameter) else self.group
            self._pending.append((dist.all_reduce(gradient, group=group, async_op=True), gradient))

    def finish(self) -> None:
        """Wait for the exchange of the step's gradients, and divide the sums."""
        for work, gradient in self._pending:
            work.wait()
            gradient /= self.group.size()
        self._pending.clear()


class DividedZeroOptimizer(ZeroRedundancyOptimizer):  # type: ignore[misc]
    """torch's ZeRO optimizer for weights divided by tensors or experts: it broadcasts each rank's part of them.

    `mesh`: the run's. Ranks that share experts have each the states of their own experts: these are divided over the
    copies, as all other states over the data ranks.
    """

    def __init__(self, groups: Any, optimizer_class: Any, mesh: DeviceMesh, **defaults: Any) -> None:
        names = mesh.mesh_dim_names or ()
        self._copies = mesh["copy"] if EXPERT in names else None
        self._sharing = mesh[EXPERT].size() if EXPERT in names else 1
        super().__init__(groups, optimizer_class, process_group=mesh["data"].get_group(), **defaults)

    def _partition_parameters(self, params_per_rank: Any = None) -> list[list[dict[str, Any]]]:
        fresh = not self._partition_parameters_cache
        partition: list[list[dict[str, Any]]] = super()._partition_parameters(params_per_rank)
        if fresh and self._sharing > 1:
            for first in range(0, len(partition), self._sharing):
                # Ranks that share experts follow each other.
                ranks = partition[first : first + self._sharing]
                for groups in zip(*ranks, strict=True):
                    shared = [
                        weight for group in groups for weight in group["params"] if holds_experts(weight)
                    ]
                    for group in groups:
                        whole = [weight for weight in group["params"] if not holds_experts(weight)]
                        group["params"] = whole + shared
        return partition

    def _broadcast_params_from_rank(self, rank: int) -> list[dist.Work]:
        source, works = dist.get_global_rank(self.process_group, rank), []
        for group in self._partition_parameters()[rank]:
            for weight in group["params"]:
                ranks = self.process_group
                if self._copies and holds_experts(weight):
                    if (rank - self.rank) % self._sharing:
                        continue
                    ranks = self._copies.get_group()
                works.append(dist.broadcast(local_tensor(weight.data), source, ranks, async_op=True))
        return works


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
