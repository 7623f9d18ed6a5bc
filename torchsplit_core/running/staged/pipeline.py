"""A step of a pipeline: micro-batches through the stages by torch's schedules, each process with its own stages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median_low
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.utils import _pytree as pytree

from torchsplit_core.running.divide import moved, recompute, replicate, shard
from torchsplit_core.running.staged.chain import Chain, stages_of, traced_chain
from torchsplit_core.running.staged.clock import Clock, Moment
from torchsplit_core.running.staged.feed import Loss, StagedFeed, single
from torchsplit_core.running.staged.modules import Stage, Staged
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import SHARDED

LEAST_S = 1e-9
"""What takes less than a clock shows takes so long."""
SCHEDULES_KEPT = 2
"""A whole step has one, and the last of a pass over the data; each has its buffers."""


class _OwnStage(PipelineStage):  # type: ignore[misc]
    """torch's, with the seconds of its passes, without waiting for other stages.

    `moments`: of each backward pass by that clock, its beginning and its end.
    """

    forward_s = backward_s = 0.0
    clock: Clock | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.moments: list[tuple[Moment, Moment]] = []

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        found = super().forward_maybe_with_nosync(*args, **kwargs)
        self.forward_s += time.perf_counter() - began
        return found

    def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        began, first = time.perf_counter(), self.clock and self.clock.now()
        found = super().backward_maybe_with_nosync(*args, **kwargs)
        self.backward_s += time.perf_counter() - began
        if self.clock and first is not None:
            self.moments.append((first, self.clock.now()))
        return found


class Pipeline:
    """This process's stages of the model, and the step that all processes do together.

    `model` has the weights of these stages, by names that `name_in_model` brings back. `timed`: also by block. Raises
    InputFault for a model that cannot be cut into the stages.
    """

    def __init__(
        self,
        model: nn.Module,
        feed: StagedFeed,
        mesh: DeviceMesh,
        strategy: RunStrategy,
        device: torch.device,
        *,
        timed: bool,
    ) -> None:
        choices, precision = strategy.choices, strategy.job.precision
        self.feed, self.device, self.data_ranks = feed, device, choices.data
        self._group, place = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank()
        self._count, self._processes = choices.pipeline * choices.interleave, choices.pipeline
        chain = traced_chain(
            model, lambda count: tuple(feed.batch([one % feed.samples for one in range(count)])[0])
        )
        self.cut = stages_of(chain, self._count, strategy.layers)
        self.blocks, self._values, self._inputs = chain.blocks, chain.values, chain.inputs
        self._result = chain.result
        self._numbers = range(place, self._count, choices.pipeline)
        autocast = precision == "bf16" and choices.shard not in SHARDED
        self._clock = Clock(device) if timed else None
        own = [
            Stage(
                chain, self.cut[number], device, lambda one: self._given[one],
                precise=not autocast, clock=self._clock,
            )
            for number in self._numbers
        ]  # fmt: skip
        self.model = Staged(own, _rest(model, chain, device) if place == 0 else {})
        # What other processes have is given back.
        model.to("meta")
        for stage in own:
            recompute(stage, choices.recompute)
        self._stages: list[nn.Module] = [_divided(stage, mesh, strategy) for stage in own]
        self._fetches = any(stage.reads_inputs or stage.is_last for stage in own)
        self._schedules: dict[tuple[int, int], tuple[Any, list[_OwnStage]]] = {}
        self._given: list[dict[str, Any]] = []
        self._targets: list[Any] = []
        self._part = self._loss_sum = 0.0
        self._loss: Loss | None = None
        self._loss_moments: list[tuple[Moment, Moment]] = []
        self.seconds: dict[str, float] = {}
        """Of this process's stages in the last step, by `forward` and `backward`, without what it waited."""
        self.blocks_s: tuple[float, ...] = ()
        """Where it is timed: of a micro-batch of the last step in each block, 0 in those of others, and in the loss."""

    def words(self) -> list[str]:
        """The blocks of each stage."""
        return [self.blocks.words(one) for one in self.cut]

    def own_blocks(self) -> dict[str, float | None]:
        """The blocks of this process, with the seconds of a micro-batch where they are known."""
        return {
            self.blocks.names[place]: self.blocks_s[place] if self.blocks_s else None
            for number in self._numbers
            for place in self.cut[number]
        }

    def fetch(self, step: int) -> int:
        """Have the micro-batches of the step ready; how many samples they are."""
        batches = self.feed.micro_batches(step)
        counted = sum(map(len, batches))
        # A rank that has no sample left runs one that counts nothing.
        batches = batches or (tuple(self.feed.indices(step)[:1]),)
        self._given, self._targets = [], []
        self._size = len(batches[0])
        for indices in batches if self._fetches else ():
            inputs, targets = self.feed.batch(indices)
            leaves = pytree.tree_leaves((tuple(inputs), {}))
            self._check(leaves)
            self._given.append(moved(dict(zip(self._inputs, leaves, strict=True)), self.device))
            self._targets.append(moved(targets, self.device))
        self._number = len(batches)
        return counted

    def _check(self, leaves: Sequence[Any]) -> None:
        """Raises InputFault for inputs of other sizes than those that the stages were traced with."""
        for name, leaf in zip(self._inputs, leaves, strict=True):
            value = self._values.get(name)
            if value is None:
                continue
            wanted, found = (value.sizes(self._size), value.dtype), (tuple(leaf.shape), leaf.dtype)
            if found != wanted:
                raise InputFault(
                    "the data",
                    f"{name} is {found[0]} of {found[1]}, but the samples before had {wanted[0]} of {wanted[1]}",
                    "Pad the samples to one size, or fix pipeline to 1.",
                )

    def step(self, counted: int, samples: int, loss: Loss) -> float:
        """Gradients of what was fetched: `counted` samples of the step's; this process's part of the step's loss."""
        key = self._size, self._number
        schedule, stages = self._schedules.pop(key) if key in self._schedules else self._schedule(*key)
        self._schedules[key] = schedule, stages
        while len(self._schedules) > SCHEDULES_KEPT:
            self._schedules.pop(next(iter(self._schedules)))
        self._loss_moments.clear()
        for stage, own in zip(stages, self.model.stages, strict=True):
            stage.forward_s = stage.backward_s = 0.0
            stage.moments.clear()
            own.moments.clear()
        self._loss, self._loss_sum = loss, 0.0
        self._part = self._size / samples if counted else 0.0
        numbers = torch.arange(self._number)
        try:
            schedule.step(target=numbers, number=numbers, return_outputs=False)
        except RuntimeError as error:
            # A stage's own error stands behind torch's.
            raise error.__cause__ or error from None
        finally:
            self._given, self._targets = [], []
        self.seconds = {
            "forward": sum(stage.forward_s for stage in stages),
            "backward": sum(stage.backward_s for stage in stages),
        }
        if self._clock:
            self.blocks_s = self._timed(self._clock, stages)
        return self._loss_sum

    def _timed(self, clock: Clock, stages: Sequence[_OwnStage]) -> tuple[float, ...]:
        """Seconds of the usual micro-batch: the last of a step has the exchange of gradients in it.

        The backward pass of a stage is its blocks' as the forward pass is.
        """
        found = [0.0] * (len(self.blocks.names) + 1)
        for stage, own, number in zip(stages, self.model.stages, self._numbers, strict=True):
            ahead = [
                median_low(clock.between(one[place], one[place + 1]) for one in own.moments)
                for place in range(len(self.cut[number]))
            ]
            back = median_low([clock.between(*one) for one in stage.moments] or [0.0])
            for place, seconds in zip(self.cut[number], ahead, strict=True):
                found[place] = seconds * (1 + back / max(sum(ahead), LEAST_S))
        found[-1] = median_low([clock.between(*one) for one in self._loss_moments] or [0.0])
        return tuple(found)

    def _loss_of(self, outputs: tuple[Tensor, ...], number: Tensor) -> Tensor:
        """A micro-batch's part of the mean over the step's samples; over data ranks it is averaged."""
        assert self._loss is not None
        first = self._clock and self._clock.now()
        loss = single(self._loss(self._result.of(outputs), self._targets[int(number)]))
        if self._clock and first is not None:
            self._loss_moments.append((first, self._clock.now()))
        self._loss_sum += float(loss.detach()) * self._part if self._part else 0.0
        return loss.float() * (self._part * self.data_ranks)

    def _schedule(self, size: int, count: int) -> tuple[Any, list[_OwnStage]]:
        """torch's schedule for so many micro-batches of that size, with stages that know the sizes of their values."""
        stages = [
            self._stage(module, own, number, size)
            for module, own, number in zip(self._stages, self.model.stages, self._numbers, strict=True)
        ]
        settings: dict[str, Any] = {"loss_fn": self._loss_of, "scale_grads": False}
        if len(stages) > 1:
            rounds = max(1, count // self._processes)
            several = ScheduleLoopedBFS if count % rounds else ScheduleInterleaved1F1B
            return several(stages, count, **settings), stages
        one = Schedule1F1B if count >= self._count else ScheduleGPipe
        return one(stages[0], count, **settings), stages

    def _stage(self, module: nn.Module, own: Stage, number: int, size: int) -> _OwnStage:
        meta = torch.device("meta")
        taken, handed = (
            tuple(self._values[name].example(size, meta) for name in names)
            for names in (own.takes, own.hands)
        )
        made = _OwnStage(
            module, number, self._count, self.device, input_args=taken, output_args=handed, group=self._group
        )
        made.clock = self._clock
        return made


def _rest(model: nn.Module, chain: Chain, device: torch.device) -> dict[str, Any]:
    """Weights and buffers that no part reads."""
    specs = {spec.arg.name: spec.target for spec in chain.program.graph_signature.input_specs}
    read = {specs[name] for part in chain.parts for name in part.weights}
    return {
        name: nn.Parameter(value.to(device), value.requires_grad)
        if isinstance(value, nn.Parameter)
        else value.to(device)
        for name, value in model.state_dict(keep_vars=True).items()
        if name not in read
    }


def _divided(stage: Stage, mesh: DeviceMesh, strategy: RunStrategy) -> nn.Module:
    """The stage over its data ranks."""
    choices = strategy.choices
    if choices.shard in SHARDED:
        return shard(stage, mesh, choices, strategy.job.precision)
    if choices.data == 1 or not any(one.requires_grad for one in stage.parameters()):
        return stage
    return replicate(stage, mesh, unused_weights=False)
