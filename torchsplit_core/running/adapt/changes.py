"""What a run changes after a step by what all ranks told of it: alike on every rank, and said by the first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torchsplit_core.running.adapt import memory
from torchsplit_core.running.adapt.kept import UnderWay
from torchsplit_core.running.adapt.layers import Move, Mover
from torchsplit_core.running.adapt.speed import Balancer
from torchsplit_core.running.adapt.told import Told
from torchsplit_core.running.feed import Feed
from torchsplit_core.running.staged.feed import StagedFeed
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.units import GIB

if TYPE_CHECKING:
    from torchsplit_core.running.staged.pipeline import Pipeline

LOOK_S = 1.0
"""Free memory is asked for at most so often."""


class Changes:
    """Passes that fit into memory, and by speed where `options.balance` says so: shares, or the blocks of a pipeline's
    stages, which `mover` deals out. The global batch stays.

    `move`: what the next start is to begin with, None where all stay. `ended`: the move that this start ended.
    """

    def __init__(
        self,
        feed: Feed,
        strategy: RunStrategy,
        options: RunOptions,
        device: torch.device,
        tell: Callable[[str, str, int | None], None],
        pipeline: Pipeline | None = None,
    ) -> None:
        self.feed, self.predicted, self.device, self._tell = feed, strategy.predicted, device, tell
        balanced = options.balance and feed.ranks > 1 and pipeline is None
        self.balancer = Balancer(feed.ranks, feed.global_batch) if balanced else None
        self.pipeline, self.mover = pipeline, None
        if options.balance and pipeline:
            layers = [len(one) for one in pipeline.cut]
            self.mover = Mover(pipeline.blocks, layers, strategy.choices.pipeline)
        self.move: Move | None = None
        self.ended: UnderWay | None = None
        self._guard = memory.Guard()
        self._steps = 0
        self._began_s = self._seconds = 0.0
        self._looked_s, self._free_share = -LOOK_S, 1.0
        self._limit_bytes = memory.limit_bytes(device)

    def begin(self, *, step: bool = False) -> None:
        """This rank begins a pass, or a step."""
        self._seconds = 0.0 if step else self._seconds
        self._began_s = time.perf_counter()

    def end(self, counted: int) -> None:
        """It has done what it does without the others: samples are fetched, the loss of `counted` of them is known."""
        if not counted:
            return
        if self.balancer and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._seconds += time.perf_counter() - self._began_s

    def took(self, seconds: float) -> None:
        """This rank's own work of the step, where others measure it."""
        self._seconds = seconds

    def own(
        self, loss: float, finite: float, samples: int, *, asked: float = 0.0, move_s: float = 0.0
    ) -> Told:
        """What this rank tells of the step."""
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s, self._free_share = now, memory.free_share(self.device)
        peak, limit = memory.peak_bytes(self.device), self._limit_bytes
        blocks_s = self.pipeline.blocks_s if self.pipeline and self.mover else ()
        return Told(
            loss, finite, self._seconds, samples, now, peak, self._free_share, asked, limit, move_s, blocks_s
        )

    def after(self, step: int, told: Sequence[Told], steps_left: int) -> None:
        """Change what the figures of the step call for. `step`: the one that is done."""
        self._steps += 1
        if self._steps == 1:
            self._say_memory(told)
            if self.mover:
                self.mover.passed_over(told)
            return  # its times are those of a start
        self._fit(step, told)
        if self.mover:
            self._deal_out(self.mover, step, told, steps_left)
        if self.balancer:
            self._balance(self.balancer, step, told)

    def _say_memory(self, told: Sequence[Told]) -> None:
        peaks = [one.peak_bytes for one in told]
        rank = peaks.index(max(peaks))
        what = "tensors of its GPU" if self.device.type == "cuda" else "the whole process"
        words = f"rank {rank} has used most after a step: {peaks[rank] / GIB:.3g} GiB ({what})"
        if self.predicted:
            words += f"; predicted for the fullest device: {self.predicted.memory_gib:.3g} GiB"
        self._tell("memory", words, rank)

    def _fit(self, step: int, told: Sequence[Told]) -> None:
        free = [one.free_share for one in told]
        now = self.feed.largest_pass
        smaller = self._guard.smaller(step, free, now)
        if smaller is None:
            return
        self.feed.micro_batch = smaller
        rank = free.index(min(free))
        words = f"rank {rank} has {min(free):.1%} of its memory left after step {step}: passes of at most {smaller} "
        self._tell("memory_short", f"{words}samples instead of {now}, the global batch as it was", rank)

    def _balance(self, balancer: Balancer, step: int, told: Sequence[Told]) -> None:
        balancer.heard([one.seconds for one in told], [one.samples for one in told])
        before = self.feed.counts(self.feed.global_batch)
        seconds = balancer.seconds_a_sample() if balancer.ready else ()
        # The first rank's clock is everyone's.
        counts = balancer.better(told[0].clock_s, before)
        if counts is None:
            return
        self.feed.shares = tuple(float(one) for one in counts)
        slowest = seconds.index(max(seconds))
        words = f"samples of a step by rank: {_listed(counts)} instead of {_listed(before)} after step {step}"
        ratio = max(seconds) / min(seconds)
        self._tell(
            "balanced",
            f"{words}; rank {slowest} needs {ratio:.2g} times as long for one as the fastest",
            slowest,
        )

    def _deal_out(self, mover: Mover, step: int, told: Sequence[Told], steps_left: int) -> None:
        assert isinstance(self.feed, StagedFeed)
        self.move = None
        # The ranks of the first stage have all samples of the step.
        if sum(one.samples for one in told[: self.feed.ranks]) != self.feed.global_batch:
            mover.passed_over(told)
            return
        mover.heard(told, self.feed.most_passes, self.feed.largest_pass)
        if self.ended and mover.step_s is not None:
            self._say_measured(self.ended, mover.step_s)
            self.ended = None
        self.move = mover.better(told, steps_left)
        if self.move:
            rank = self.move.longest % mover.processes * self.feed.ranks
            words = f"moves {self.move.what} after step {step}: {self.move.why}; {steps_left} steps are left"
            self._tell("layers_moving", f"{words}, the move takes about {told[0].move_s:.3g} s", rank)

    def _say_measured(self, ended: UnderWay, step_s: float) -> None:
        words = f"after moving {ended.what} a step takes {step_s:.3g} s, {ended.step_s:.3g} s before"
        self._tell("layers_measured", f"{words}; {ended.predicted_s:.3g} s were predicted", None)


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
