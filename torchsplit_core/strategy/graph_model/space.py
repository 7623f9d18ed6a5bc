"""The choices for a traced model, and those that it excludes, with their reasons.

A graph says what is computed, not which products can be divided. So there are data parallelism, sharding,
recomputation of blocks, accumulation, offload and a pipeline over blocks, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchsplit_core.strategy.graph_model.blocks import BlockChain
from torchsplit_core.strategy.search.space import BATCH_RULE, RECOMPUTES, divisors
from torchsplit_core.strategy.supported import Runnable
from torchsplit_core.values.errors import InputFault, quoted
from torchsplit_core.values.strategy.request import StrategyFix
from torchsplit_core.values.training import Offload, ParallelConfig, Recompute, Shard, TrainingJob

WITHOUT_SIZES = (
    "tensor, context and expert parallelism need a model told by its sizes: a graph does not say which products may "
    "be divided"
)
NO_BLOCKS = "recomputation needs repeated blocks, and the model has none"
FIXED_VALUES = {"tensor": 1, "context": 1, "expert": 1, "interleave": 1, "sequence_parallel": False}
"""Values of these choices for a traced model."""
WHY_FIXED = {
    "tensor": "a graph does not say which products may be divided among devices",
    "context": "a graph does not say which dimension is the sequence",
    "expert": "a graph does not say what its experts are",
    "interleave": "chunks of a stage are for models told by their sizes",
    "sequence_parallel": "it goes with tensor parallelism",
}


@dataclass(frozen=True, slots=True)
class GraphSearchSpace:
    """The chain, the job, devices of a node, what is fixed, and what can be run."""

    chain: BlockChain
    job: TrainingJob
    per_node: int
    fix: StrategyFix
    runnable: Runnable

    def check(self) -> None:
        """Raises InputFault, with the reason, for a fix that no choice of a traced model satisfies."""
        for name, value in self.fix.given().items():
            if name in FIXED_VALUES and value != FIXED_VALUES[name]:
                raise InputFault(
                    f"fix.{name}",
                    f"is {quoted(value)}; a traced model has only {str(FIXED_VALUES[name]).lower()}: {WHY_FIXED[name]}",
                    "Leave it out, or give the model's sizes.",
                )
        if self.fix.offload == "optimizer":
            raise InputFault(
                "fix.offload",
                "is 'optimizer'; PyTorch offloads a traced model's states only with its parameters",
                "Choose parameters.",
            )
        if (self.fix.pipeline or 1) > 1 and self.chain.no_cut:
            raise InputFault(
                "fix.pipeline",
                f"is {self.fix.pipeline}, but this model cannot be cut into stages: {self.chain.no_cut}",
                "Leave it out.",
            )
        if self.fix.recompute not in (None, "none") and not self.chain.blocks:
            raise InputFault(
                "fix.recompute", f"is {quoted(self.fix.recompute)}, but {NO_BLOCKS}", "Leave it out."
            )

    def layouts(self, devices: int) -> Iterator[tuple[ParallelConfig, str]]:
        """Every division of the devices that the fixes allow, with the rule it breaks ("" for none)."""
        for pipeline in divisors(devices):
            data = devices // pipeline
            if self.fix.pipeline not in (None, pipeline) or self.fix.data not in (None, data):
                continue
            yield ParallelConfig(data=data, pipeline=pipeline), self._broken_rule(data, pipeline)

    def divided_otherwise(self, devices: int) -> int:
        """Number of divisions of the devices that need tensor or context parallelism and so are excluded."""
        if self.fix.tensor is not None and self.fix.context is not None:
            return 0
        count = sum(
            1
            for tensor in divisors(devices)
            for pipeline in divisors(devices // tensor)
            for _ in divisors(devices // tensor // pipeline)
        )
        return count - len(divisors(devices))

    def _broken_rule(self, data: int, pipeline: int) -> str:
        if pipeline > 1 and self.chain.no_cut:
            return f"the model cannot be cut into stages: {self.chain.no_cut}"
        if pipeline > max(1, len(self.chain.blocks)):
            return "more stages than blocks"
        if self.job.global_batch % data:
            return BATCH_RULE
        return ""

    def shapes(self, layout: ParallelConfig) -> Iterator[ParallelConfig]:
        """Every micro-batch and recomputation for a layout."""
        for micro_batch in divisors(self.job.global_batch // layout.data):
            if self.fix.micro_batch not in (None, micro_batch):
                continue
            for recompute in self.recomputes():
                yield replace(layout, micro_batch=micro_batch, recompute=recompute)

    def recomputes(self) -> tuple[Recompute, ...]:
        """What may be recomputed: blocks, if there are any."""
        possible: tuple[Recompute, ...] = RECOMPUTES if self.chain.blocks else ("none",)
        return tuple(mode for mode in possible if self.fix.recompute in (None, mode))

    def storages(self, layout: ParallelConfig) -> tuple[tuple[Shard, Offload], ...]:
        """Ways to store states, runnable or not; parameters are offloaded only where blocks are gathered one by one."""
        storages: list[tuple[Shard, Offload]] = [("none", "none"), ("fsdp", "parameters")]
        inside = min(layout.data, self.per_node)
        if layout.data > 1:
            storages += [("zero1", "none"), ("fsdp", "none")]
            if layout.pipeline == 1:
                storages.append(("zero2", "none"))
            if inside > 1 and layout.data > inside and layout.data % inside == 0:
                storages += [("hsdp", "none"), ("hsdp", "parameters")]
        return tuple(
            storage
            for storage in storages
            if self.fix.shard in (None, storage[0]) and self.fix.offload in (None, storage[1])
        )

    def choices(self, devices: int) -> Iterator[ParallelConfig]:
        """Every runnable choice for exactly `devices` devices."""
        return filter(self.runnable.includes, self.estimated_choices(devices))

    def estimated_choices(self, devices: int) -> Iterator[ParallelConfig]:
        """`choices`, with those that cannot be run yet."""
        for layout, broken in self.layouts(devices):
            if not broken:
                for shape in self.shapes(layout):
                    for shard, offload in self.storages(layout):
                        yield replace(shape, shard=shard, offload=offload)

    def is_empty(self, devices: int) -> bool:
        """Whether no number of devices up to `devices` has a choice."""
        return all(next(self.choices(count), None) is None for count in range(devices, 0, -1))
