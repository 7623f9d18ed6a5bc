"""The exchanges as torch's communication hooks: of a bucket of gradients to a future of their sum or mean over ranks.

The exchanges without loss only sum: a division would be one more pass over all gradients, and the loss can have the
factor instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from torchsplit_core.values.strategy.communication import Hook

BucketHook = Callable[[Any], "Future[Tensor]"]
DTYPES: Mapping[Hook, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Types in which compressed gradients are sent."""


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """The ranks of this node, and the first rank of each node (None on other ranks)."""

    inside: dist.ProcessGroup
    between: dist.ProcessGroup | None
    first: int
    """This node's first rank, in the whole group's numbers."""


def make_node_groups(per_node: int) -> NodeGroups:
    """The groups of nodes that hold `per_node` consecutive ranks each; every rank calls this."""
    rank, world = dist.get_rank(), dist.get_world_size()
    inside = [dist.new_group([*range(first, first + per_node)]) for first in range(0, world, per_node)]
    between = dist.new_group([*range(0, world, per_node)])
    first = rank - rank % per_node
    return NodeGroups(inside[rank // per_node], between if rank == first else None, first)


class SerialExchange:
    """Runs exchanges of several messages in a thread, one bucket after another.

    Gloo pairs the messages of its ranks by their order, so those of two buckets must not mix; and a hook that waited
    would stop the backward pass.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")

    def __call__(self, exchange: Callable[[], Tensor]) -> Future[Tensor]:
        """The future of what `exchange` returns."""
        future: Future[Tensor] = Future()

        def run() -> None:
            try:
                future.set_result(exchange())
            except Exception as error:  # noqa: BLE001 - whoever waits for the future raises it
                future.set_exception(error)

        self._thread.submit(run)
        return future


def all_reduce_hierarchical(buffer: Tensor, groups: NodeGroups) -> Tensor:
    """The sum over all ranks: of each node, then over the nodes' first ranks, handed back."""
    dist.reduce(buffer, groups.first, group=groups.inside)
    if groups.between is not None:
        dist.all_reduce(buffer, group=groups.between)
    dist.broadcast(buffer, groups.first, group=groups.inside)
    return buffer


class _Bucket:
    """What PowerSGD reads of a bucket, since torch's lives only as long as the call of the hook."""

    def __init__(self, bucket: dist.GradBucket) -> None:
        self._index: int = bucket.index()
        self._last: bool = bucket.is_last()
        self._buffer: Tensor = bucket.buffer()
        self._gradients: list[Tensor] = bucket.gradients()
        self._parameters: list[Tensor] = bucket.parameters()

    def index(self) -> int:
        return self._index

    def is_last(self) -> bool:
        return self._last

    def buffer(self) -> Tensor:
        return self._buffer

    def gradients(self) -> list[Tensor]:
        return self._gradients

    def parameters(self) -> list[Tensor]:
        return self._parameters


class PowerSGD:
    """torch's PowerSGD with its error feedback by the weights' names, so that checkpoints can hold it.

    `warm_up`: steps with a plain all-reduce before (at least 2: DDP forms its buckets anew after the first).
    `errors`: a checkpoint's, taken up at the first compressed step.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        rank: int,
        warm_up: int,
        names: Mapping[int, str],
        serial: SerialExchange | None,
    ) -> None:
        self.warm_up = max(2, warm_up)
        # Imported here, as in `simple_hook`: few runs compress.
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        self._exchange = powerSGD_hook
        self.state = PowerSGDState(group, rank, start_powerSGD_iter=self.warm_up)
        self.errors: dict[str, Tensor] = {}
        self._names, self._serial = names, serial
        self._parameters: dict[int, list[Tensor]] = {}

    def __call__(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """The future of the bucket's mean."""
        copied = _Bucket(bucket)
        index, state = copied.index(), self.state
        compressing = state.iter >= state.start_powerSGD_iter
        first = compressing and index not in state.p_memory_dict
        if first:
            self._parameters[index] = copied.parameters()
            if self.errors:
                state.error_dict[index] = torch.cat(
                    [self.errors[self._names[id(weight)]].flatten() for weight in copied.parameters()]
                )
        if self._serial is None:
            return self._exchange(state, copied)
        future = self._serial(lambda: self._exchange(state, copied).wait())
        if first:
            # It draws random numbers from the process's generator, which the backward pass may use as well.
            future.wait()
        return future

    def local_errors(self) -> dict[str, Tensor]:
        """What this rank has not sent yet of each weight's gradient; empty before the first compressed step."""
        errors = {}
        for index, weights in self._parameters.items():
            parts = self.state.error_dict[index].split([weight.numel() for weight in weights])
            for weight, part in zip(weights, parts, strict=True):
                errors[self._names[id(weight)]] = part.view_as(weight)
        return errors or self.errors


def simple_hook(hook: Hook, group: dist.ProcessGroup) -> BucketHook:
    """An all-reduce of a bucket as a whole: the sum, or the mean of what is rounded."""
    if hook == "all_reduce":
        return lambda bucket: _sum(bucket.buffer(), group)
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    rounded = default_hooks.bf16_compress_hook if hook == "bf16" else default_hooks.fp16_compress_hook
    return lambda bucket: rounded(group, bucket)


def _sum(buffer: Tensor, group: dist.ProcessGroup) -> Future[Tensor]:
    future = dist.all_reduce(buffer, group=group, async_op=True).get_future()
    return future.then(lambda reduced: reduced.value()[0])


def hierarchical_hook(groups: NodeGroups, serial: SerialExchange) -> BucketHook:
    """An all-reduce within nodes and between them."""

    def hook(bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        return serial(lambda: all_reduce_hierarchical(buffer, groups))

    return hook


def rounded_exchange(dtype: torch.dtype, group: dist.ProcessGroup) -> Callable[[Tensor], object]:
    """What a compressing hook does to a buffer, to be timed."""

    def exchange(buffer: Tensor) -> None:
        small = buffer.to(dtype)
        dist.all_reduce(small, group=group)
        buffer.copy_(small)

    return exchange
