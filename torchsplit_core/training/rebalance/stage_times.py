"""Estimates the step of a pipeline with other stages from the measured seconds of its blocks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median

from torchsplit_core.strategy.graph_model.stage_partition import best_layers
from torchsplit_core.training.pipeline.blocks import BlockCosts, ranges_of


@dataclass(frozen=True)
class StageTimes:
    """Stages of `layers` blocks; stage s runs on process s mod `processes`.

    `seconds`: of a micro-batch in each block, where it runs now; `loss_s`: in the loss. A step has `micro_batches`
    micro-batches of `samples` samples. `room`: bytes that each process may still take, infinite if unknown.
    """

    blocks: BlockCosts
    layers: tuple[int, ...]
    processes: int
    seconds: tuple[float, ...]
    loss_s: float
    micro_batches: int
    samples: int
    room: tuple[float, ...]

    @cached_property
    def process_of_block(self) -> tuple[int, ...]:
        return tuple(stage % self.processes for stage, count in enumerate(self.layers) for _ in range(count))

    @cached_property
    def slowness(self) -> tuple[float, ...]:
        """Slowness of each process against the fastest, by blocks of one kind that several have; 1 without any."""
        by_kind: dict[tuple[float, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for place, home in enumerate(self.process_of_block):
            by_kind[self.blocks.kind(place)][home].append(self.seconds[place])
        ratios: list[list[float]] = [[] for _ in range(self.processes)]
        for by_process in by_kind.values():
            least = min(map(median, by_process.values()))
            for home, seconds in by_process.items():
                if len(by_process) > 1 and least > 0:
                    ratios[home].append(median(seconds) / least)
        return tuple(median(measured) if measured else 1.0 for measured in ratios)

    @cached_property
    def _work(self) -> list[float]:
        """Seconds that all blocks before each index take on the fastest device."""
        normalized = (
            seconds / self.slowness[home]
            for seconds, home in zip(self.seconds, self.process_of_block, strict=True)
        )
        return [0.0, *accumulate(normalized)]

    @cached_property
    def _added_bytes(self) -> list[list[float]]:
        """For each stage, the most bytes that all blocks before each index add to its process."""
        # Later stages have fewer micro-batches in flight; with chunks it may be all of them.
        chunks = len(self.layers) > self.processes
        by_stage = []
        for stage in range(len(self.layers)):
            under_way = self.micro_batches if chunks else min(self.micro_batches, self.processes - stage)
            needs = (
                0.0
                if home == stage % self.processes
                else self.blocks.max_bytes(place, under_way * self.samples)
                for place, home in enumerate(self.process_of_block)
            )
            by_stage.append([0.0, *accumulate(needs)])
        return by_stage

    def stage_s(self, stage: int, first: int, stop: int) -> float:
        """Seconds of a micro-batch in the stage with blocks `first` to `stop` - 1; infinite if these do not fit."""
        process, added = stage % self.processes, self._added_bytes[stage]
        if added[stop] - added[first] > self.room[process]:
            return math.inf
        blocks_s = self.slowness[process] * (self._work[stop] - self._work[first])
        return blocks_s + (self.loss_s if stage == len(self.layers) - 1 else 0.0)

    def stages_s(self, layers: Sequence[int]) -> tuple[float, ...]:
        """Seconds of a micro-batch in every stage of a division."""
        places = enumerate(ranges_of(layers))
        return tuple(self.stage_s(stage, blocks.start, blocks.stop) for stage, blocks in places)

    def pipeline_s(self, stages: Sequence[float]) -> float:
        """Seconds of the stages' part of a step: m · longest + (sum - longest) / chunks, over processes."""
        of_process = [sum(stages[process :: self.processes]) for process in range(self.processes)]
        return self._pipeline_s(max(of_process), sum(of_process))

    def _pipeline_s(self, longest: float, every: float) -> float:
        return self.micro_batches * longest + (every - longest) * self.processes / len(self.layers)

    @cached_property
    def min_pipeline_s(self) -> float:
        """Lower bound of all divisions: as if blocks could be cut anywhere and their sum ran on the fastest device."""
        every = self._work[-1]
        return self._pipeline_s(every / sum(1 / slowness for slowness in self.slowness), every)

    def best(self) -> tuple[int, ...] | None:
        """The blocks of each stage in the best division; None if the chunks of a process do not fit together."""
        layers = best_layers(len(self.seconds), len(self.layers), self.stage_s)
        if layers is None:
            return None
        added = [0.0] * self.processes
        for stage, places in enumerate(ranges_of(layers)):
            added[stage % self.processes] += (
                self._added_bytes[stage][places.stop] - self._added_bytes[stage][places.start]
            )
        return layers if all(needed <= most for needed, most in zip(added, self.room, strict=True)) else None
