"""A pipeline's step: torch's schedules run micro-batches through the stages, of which each process has its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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

from torchsplit_core.training.division.context import ContextParallel
from torchsplit_core.training.division.experts import (
    EXPERT,
    divide_experts,
    planned_experts,
    trace_as_operators,
)
from torchsplit_core.training.division.tensor import apply_tensor_parallel
from torchsplit_core.training.division.traced import TracedParts
from torchsplit_core.training.parallelize import apply_ddp, apply_fsdp, apply_recompute, to_device
from torchsplit_core.training.pipeline.device_timer import DeviceTimer, Timestamp
from torchsplit_core.training.pipeline.parameter_names import name_in_model
from torchsplit_core.training.pipeline.split_program import SplitProgram, partition_stages, split_model
from torchsplit_core.training.pipeline.stage_batches import Loss, StageBatches, scalar_loss
from torchsplit_core.training.pipeline.stage_modules import PipelineStages, StageModule
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import SHARDED

MIN_S = 1e-9
"""Minimum seconds assumed for a pass, since the clock may show none."""
MAX_SCHEDULES = 2
"""One for a full step and one for the last step of an epoch; each has its buffers."""


class _TimedStage(PipelineStage):  # type: ignore[misc]
    """torch's stage with the seconds of its passes, excluding waits for other stages.

    `timestamps`: start and end of each backward pass, by the timer.
    """

    forward_s = backward_s = 0.0
    timer: DeviceTimer | None = None

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.timestamps: list[tuple[Timestamp, Timestamp]] = []

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        outputs = super().forward_maybe_with_nosync(*args, **kwargs)
        self.forward_s += time.perf_counter() - began
        return outputs

    def backward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        began, first = time.perf_counter(), self.timer and self.timer.now()
        gradients = super().backward_maybe_with_nosync(*args, **kwargs)
        self.backward_s += time.perf_counter() - began
        if self.timer and first is not None:
            self.timestamps.append((first, self.timer.now()))
        return gradients


class PipelineEngine:
    """This process's stages of the model, and the step that all processes run together.

    `model` has the weights of these stages, under names that `name_in_model` translates. `timed`: also time each block.
    Raises InputFault for a model that cannot be cut into the stages.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: StageBatches,
        mesh: DeviceMesh,
        strategy: RunStrategy,
        device: torch.device,
        *,
        timed: bool,
        tensor_plan: Mapping[str, str] | None = None,
        expert_plan: Sequence[str] | None = None,
        context: ContextParallel | None = None,
    ) -> None:
        choices, precision = strategy.choices, strategy.job.precision
        self.batches, self.device, self.data_ranks = batches, device, choices.data
        self._group, place = mesh["pipeline"].get_group(), mesh["pipeline"].get_local_rank()
        self._count, self._processes = choices.pipeline * choices.interleave, choices.pipeline
        parts: TracedParts | None = None
        if choices.tensor > 1:
            parts = TracedParts(model, mesh["tensor"])
            apply_tensor_parallel(model, parts.mesh, tensor_plan, choices, parts)
        experts = trace_as_operators(planned_experts(model, expert_plan, choices.expert))
        self._divides_experts = choices.expert > 1
        self._context = context
        with context.divided_attention(batches.batch([0])) if context else nullcontext():
            chain = split_model(
                model, lambda count: self._batch([index % batches.samples for index in range(count)])[0]
            )
        if context:
            context.check_attended()
        self.cut = partition_stages(chain, self._count, strategy.layers)
        self.blocks, self._values, self._inputs = chain.blocks, chain.values, chain.inputs
        self._result = chain.result
        self._numbers = range(place, self._count, choices.pipeline)
        autocast = precision == "bf16" and choices.shard not in SHARDED
        self._timer = DeviceTimer(device) if timed else None
        local_stages = [
            StageModule(
                chain, self.cut[number], device, lambda micro_batch: self._inputs_of_micro_batch[micro_batch], experts,
                precise=not autocast, timer=self._timer,
            )
            for number in self._numbers
        ]  # fmt: skip
        self.model = PipelineStages(local_stages, _rest(model, chain, device) if place == 0 else {})
        if parts:
            parts.restore(self.model, name_in_model)
        # Free the weights that other processes hold.
        model.to("meta")
        self._stages: list[nn.Module] = []
        for stage in local_stages:
            divided = (
                [module for module in stage.modules() if module in experts.values()]
                if choices.expert > 1
                else []
            )
            for module in divided:
                divide_experts(module, mesh[EXPERT])
            apply_recompute(stage, choices.recompute)
            self._stages.append(_parallelize_stage(stage, mesh, strategy, divided))
        self._fetches = any(stage.reads_inputs or stage.is_last for stage in local_stages)
        self._schedules: dict[tuple[int, int], tuple[Any, list[_TimedStage]]] = {}
        self._inputs_of_micro_batch: list[dict[str, Any]] = []
        self._targets: list[Any] = []
        self._weight = self._loss_sum = 0.0
        self._counting = 0
        """How many of the fetched micro-batches count, the first ones."""
        self._loss: Loss | None = None
        self._loss_timestamps: list[tuple[Timestamp, Timestamp]] = []
        self.seconds: dict[str, float] = {}
        """Seconds of this process's stages in the last step, by `forward` and `backward`, excluding waits."""
        self.blocks_s: tuple[float, ...] = ()
        """If timed: seconds of the last step's median micro-batch in each block, 0 in remote ones, and in the loss."""

    def describe_stages(self) -> list[str]:
        """The names of the blocks of each stage."""
        return [self.blocks.describe(blocks) for blocks in self.cut]

    def local_blocks(self) -> dict[str, float | None]:
        """Seconds of a micro-batch in each block of this process, None if they are not known."""
        return {
            self.blocks.names[place]: self.blocks_s[place] if self.blocks_s else None
            for number in self._numbers
            for place in self.cut[number]
        }

    def fetch(self, step: int) -> int:
        """Load the step's micro-batches; returns how many samples they have."""
        batches = self.batches.micro_batch_indices(step)
        counted, self._counting = sum(map(len, batches)), len(batches)
        # A rank without samples left runs one micro-batch that counts nothing. Ranks that exchange rows of experts all
        # run as many as the rank that has the most.
        most = (
            self.batches.most_micro_batches(len(self.batches.indices(step))) if self._divides_experts else 1
        )
        idle = batches[0] if batches else tuple(self.batches.indices(step)[:1])
        batches += (idle,) * (most - len(batches))
        self._inputs_of_micro_batch, self._targets = [], []
        self._size = len(batches[0])
        for indices in batches if self._fetches else ():
            inputs, targets = self._batch(indices)
            leaves = pytree.tree_leaves((inputs, {}))
            self._check(leaves)
            self._inputs_of_micro_batch.append(
                to_device(dict(zip(self._inputs, leaves, strict=True)), self.device)
            )
            self._targets.append(to_device(targets, self.device))
        self._number = len(batches)
        return counted

    def _batch(self, indices: Sequence[int]) -> tuple[tuple[Any, ...], Any]:
        """Inputs and targets of these samples; with context parallelism, this rank's part of their sequences."""
        batch = self.batches.batch(indices)
        inputs, targets = self._context.part(batch) if self._context else batch
        return tuple(inputs), targets

    def _check(self, leaves: Sequence[Any]) -> None:
        """Raises InputFault for inputs of other sizes or types than those with which the stages were traced."""
        for name, leaf in zip(self._inputs, leaves, strict=True):
            value = self._values.get(name)
            if value is None:
                continue
            expected, actual = (value.sizes(self._size), value.dtype), (tuple(leaf.shape), leaf.dtype)
            if actual != expected:
                raise InputFault(
                    "the data",
                    f"{name} is {actual[0]} of {actual[1]}, but the samples before had {expected[0]} of {expected[1]}",
                    "Pad the samples to one size, or fix pipeline to 1.",
                )

    def step(self, samples: int, loss: Loss) -> float:
        """Run both passes of what was fetched of `samples`; returns this process's part of the loss."""
        key = self._size, self._number
        schedule, stages = self._schedules.pop(key) if key in self._schedules else self._schedule(*key)
        self._schedules[key] = schedule, stages
        while len(self._schedules) > MAX_SCHEDULES:
            self._schedules.pop(next(iter(self._schedules)))
        self._loss_timestamps.clear()
        for stage, stage_module in zip(stages, self.model.stages, strict=True):
            stage.forward_s = stage.backward_s = 0.0
            stage.timestamps.clear()
            stage_module.timestamps.clear()
        self._loss, self._loss_sum = loss, 0.0
        self._weight = self._size / samples
        numbers = torch.arange(self._number)
        try:
            schedule.step(target=numbers, number=numbers, return_outputs=False)
        except RuntimeError as error:
            # torch's error has the stage's own as its cause.
            raise error.__cause__ or error from None
        finally:
            self._inputs_of_micro_batch, self._targets = [], []
        self.seconds = {
            "forward": sum(stage.forward_s for stage in stages),
            "backward": sum(stage.backward_s for stage in stages),
        }
        if self._timer:
            self.blocks_s = self._block_seconds(self._timer, stages)
        return self._loss_sum

    def _block_seconds(self, timer: DeviceTimer, stages: Sequence[_TimedStage]) -> tuple[float, ...]:
        """Seconds by block of the median micro-batch: the last of a step includes the exchange of gradients.

        A stage's backward seconds are divided over its blocks in proportion to their forward seconds.
        """
        block_s = [0.0] * (len(self.blocks.names) + 1)
        for stage, stage_module, number in zip(stages, self.model.stages, self._numbers, strict=True):
            forward_s = [
                median_low(
                    timer.elapsed_s(timestamps[place], timestamps[place + 1])
                    for timestamps in stage_module.timestamps
                )
                for place in range(len(self.cut[number]))
            ]
            backward_s = median_low([timer.elapsed_s(*span) for span in stage.timestamps] or [0.0])
            for place, seconds in zip(self.cut[number], forward_s, strict=True):
                block_s[place] = seconds * (1 + backward_s / max(sum(forward_s), MIN_S))
        block_s[-1] = median_low([timer.elapsed_s(*span) for span in self._loss_timestamps] or [0.0])
        return tuple(block_s)

    def _loss_of(self, outputs: tuple[Tensor, ...], number: Tensor) -> Tensor:
        """A micro-batch's part of the mean over the step's samples, times the data ranks, which average it."""
        assert self._loss is not None
        first = self._timer and self._timer.now()
        loss = scalar_loss(self._loss(self._result.rebuild(outputs), self._targets[int(number)]))
        if self._timer and first is not None:
            self._loss_timestamps.append((first, self._timer.now()))
        weight = self._weight if int(number) < self._counting else 0.0
        self._loss_sum += float(loss.detach()) * weight if weight else 0.0
        return loss.float() * (weight * self.data_ranks)

    def _schedule(self, size: int, count: int) -> tuple[Any, list[_TimedStage]]:
        """torch's schedule for `count` micro-batches of `size` samples; its stages know the sizes of their values."""
        stages = [
            self._stage(module, stage_module, number, size)
            for module, stage_module, number in zip(
                self._stages, self.model.stages, self._numbers, strict=True
            )
        ]
        settings: dict[str, Any] = {"loss_fn": self._loss_of, "scale_grads": False}
        if len(stages) > 1:
            rounds = max(1, count // self._processes)
            interleaved = ScheduleLoopedBFS if count % rounds else ScheduleInterleaved1F1B
            return interleaved(stages, count, **settings), stages
        plain = Schedule1F1B if count >= self._count else ScheduleGPipe
        return plain(stages[0], count, **settings), stages

    def _stage(self, module: nn.Module, stage_module: StageModule, number: int, size: int) -> _TimedStage:
        meta = torch.device("meta")
        taken, handed = (
            tuple(self._values[name].example(size, meta) for name in names)
            for names in (stage_module.received_names, stage_module.sent_names)
        )
        stage = _TimedStage(
            module, number, self._count, self.device, input_args=taken, output_args=handed, group=self._group
        )
        stage.timer = self._timer
        return stage


def _rest(model: nn.Module, chain: SplitProgram, device: torch.device) -> dict[str, Any]:
    """The model's weights and buffers that no part reads."""
    specs = {spec.arg.name: spec.target for spec in chain.program.graph_signature.input_specs}
    read = {specs[name] for part in chain.parts for name in part.weights}
    return {
        name: nn.Parameter(value.to(device), value.requires_grad)
        if isinstance(value, nn.Parameter)
        else value.to(device)
        for name, value in model.state_dict(keep_vars=True).items()
        if name not in read
    }


def _parallelize_stage(
    stage: StageModule, mesh: DeviceMesh, strategy: RunStrategy, experts: Sequence[nn.Module]
) -> nn.Module:
    """The stage, divided over its data ranks. `experts`: its modules whose experts are divided."""
    choices = strategy.choices
    if choices.shard in SHARDED:
        return apply_fsdp(stage, mesh, choices, strategy.job.precision, experts)
    # DDP accepts no DTensors: the training loop averages their gradients.
    if (
        choices.data * choices.context == 1
        or choices.tensor > 1
        or choices.expert > 1
        or not any(parameter.requires_grad for parameter in stage.parameters())
    ):
        return stage
    return apply_ddp(stage, mesh, unused_weights=False)
