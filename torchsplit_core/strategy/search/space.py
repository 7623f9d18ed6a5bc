"""The choices: layouts of the devices, what each allows, and what is fixed.

A choice is a layout (data × tensor × pipeline × context = devices), a shape (expert, micro-batch, chunks of a stage,
recomputation, sequence parallelism) and a way to store the states (shard, offload). `shapes` and `storages` give
every one that divides; none is omitted for being slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt

from torchsplit_core.strategy.supported import Runnable
from torchsplit_core.values.strategy.request import StrategyFix
from torchsplit_core.values.training import (
    Offload,
    ParallelConfig,
    Recompute,
    Shard,
    TrainingJob,
    Transformer,
)

RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")

BATCH_RULE = "data does not divide the batch"
"""The only rule on a layout that depends on the batch."""


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    low = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*low, *(number // divisor for divisor in low)}))


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What the choices depend on: the model, the job, devices of a node, what is fixed, and what can be run."""

    model: Transformer
    job: TrainingJob
    per_node: int
    fix: StrategyFix
    runnable: Runnable

    def layouts(self, devices: int) -> Iterator[tuple[ParallelConfig, str]]:
        """Every division of the devices that the fixes allow, with the rule it breaks ("" for none)."""
        fix = self.fix
        for tensor in _allowed(divisors(devices), fix.tensor):
            for pipeline in _allowed(divisors(devices // tensor), fix.pipeline):
                for context in _allowed(divisors(devices // tensor // pipeline), fix.context):
                    data = devices // tensor // pipeline // context
                    if fix.data not in (None, data):
                        continue
                    layout = ParallelConfig(data, tensor, pipeline, context)
                    yield layout, self.broken_rule(layout)

    def broken_rule(self, layout: ParallelConfig) -> str:
        """The rule that a layout breaks, in words; "" for none."""
        model, tensor = self.model, layout.tensor
        if model.heads % tensor:
            return "tensor does not divide the heads"
        if model.kv_heads % tensor and tensor % model.kv_heads:
            return "tensor neither divides the heads of the keys nor is a multiple of them"
        if model.ffn % tensor:
            return "tensor does not divide the feed-forward"
        if layout.pipeline > model.layers:
            return "more stages than layers"
        if layout.context > 1 and model.sequence % (2 * layout.context):
            # Two blocks a device balance a causal attention.
            return "context does not divide the sequence into two blocks each"
        if self.job.global_batch % layout.data:
            return BATCH_RULE
        return ""

    def shapes(self, layout: ParallelConfig) -> Iterator[ParallelConfig]:
        """Every shape of a layout, with unsharded states."""
        for expert in self.experts(layout):
            for micro_batch in self.micro_batches(layout):
                for interleave in self.interleaves(layout, micro_batch):
                    for recompute in _allowed(RECOMPUTES, self.fix.recompute):
                        for sequence_parallel in self.sequence_parallels(layout):
                            yield ParallelConfig(
                                layout.data,
                                layout.tensor,
                                layout.pipeline,
                                layout.context,
                                expert,
                                micro_batch,
                                interleave,
                                "none",
                                recompute,
                                sequence_parallel,
                            )

    def experts(self, layout: ParallelConfig) -> tuple[int, ...]:
        """Devices that share the experts: divisors of the experts and of the data-parallel devices."""
        group = layout.data * layout.context
        return _allowed(
            [count for count in divisors(self.model.experts) if group % count == 0], self.fix.expert
        )

    def micro_batches(self, layout: ParallelConfig) -> tuple[int, ...]:
        """Sequences of a micro-batch: divisors of a device's batch."""
        return _allowed(divisors(self.job.global_batch // layout.data), self.fix.micro_batch)

    def interleaves(self, layout: ParallelConfig, micro_batch: int) -> tuple[int, ...]:
        """Chunks of a stage. More than one need equal chunks and rounds of as many micro-batches as stages."""
        pipeline = layout.pipeline
        passed = self.job.global_batch // layout.data // micro_batch
        counts = [1]
        if pipeline > 1 and self.model.layers % pipeline == 0 and passed % pipeline == 0:
            counts = list(divisors(self.model.layers // pipeline))
        return _allowed(counts, self.fix.interleave)

    def sequence_parallels(self, layout: ParallelConfig) -> tuple[bool, ...]:
        """Sequence parallelism needs tensor parallelism, which must divide the tokens evenly."""
        even = layout.tensor > 1 and self.model.sequence % (layout.tensor * layout.context) == 0
        return _allowed((False, True) if even else (False,), self.fix.sequence_parallel)

    def storages(self, shape: ParallelConfig) -> tuple[tuple[Shard, Offload], ...]:
        """The ways to store the states of a shape that can be run."""
        running = self.runnable.storages(shape)
        return tuple(storage for storage in self.estimated_storages(shape) if storage in running)

    def estimated_storages(self, layout: ParallelConfig) -> tuple[tuple[Shard, Offload], ...]:
        """The ways to store the states, including those that cannot be run yet.

        Sharding needs a group. zero2 sums no gradients over micro-batches of a pipeline. hsdp shards within a node and
        copies over nodes. Parameters can be offloaded if they are gathered layer by layer (fsdp, hsdp), with their
        optimizer states; a single device may offload them too.
        """
        group = layout.data * layout.context
        inside = min(group, self.per_node // layout.tensor)
        storages: list[tuple[Shard, Offload]] = [
            ("none", "none"),
            ("none", "optimizer"),
            ("fsdp", "parameters"),
        ]
        if group > 1:
            storages += [("zero1", "none"), ("zero1", "optimizer"), ("fsdp", "none")]
            if layout.pipeline == 1:
                storages += [("zero2", "none"), ("zero2", "optimizer")]
            if inside > 1 and group > inside and group % inside == 0:
                storages += [("hsdp", "none"), ("hsdp", "parameters")]
        fix = self.fix
        return tuple(
            storage
            for storage in storages
            if fix.shard in (None, storage[0]) and fix.offload in (None, storage[1])
        )

    def choices(self, devices: int) -> Iterator[ParallelConfig]:
        """Every runnable choice for exactly `devices` devices."""
        for layout, broken in self.layouts(devices):
            if broken:
                continue
            for shape in self.shapes(layout):
                for shard, offload in self.storages(layout):
                    yield replace(shape, shard=shard, offload=offload)

    def is_empty(self, devices: int) -> bool:
        """Whether no number of devices up to `devices` has a choice."""
        return all(next(self.choices(count), None) is None for count in range(devices, 0, -1))


def _allowed(options: object, fixed: object) -> tuple:  # type: ignore[type-arg]
    """All options, or only the fixed one."""
    return tuple(option for option in options if fixed is None or option == fixed)  # type: ignore[attr-defined]
