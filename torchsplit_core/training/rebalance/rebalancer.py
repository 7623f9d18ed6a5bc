"""What a run changes after a step by the reports of all ranks: all decide alike, and the first one logs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torchsplit_core.training.pipeline.stage_batches import StageBatches
from torchsplit_core.training.rank_loader import RankBatches
from torchsplit_core.training.rebalance import memory_guard
from torchsplit_core.training.rebalance.batch_balancer import BatchBalancer
from torchsplit_core.training.rebalance.overrides import PendingMove
from torchsplit_core.training.rebalance.stage_balancer import StageBalancer, StageMove
from torchsplit_core.training.rebalance.step_report import RankReport
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.units import GIB

if TYPE_CHECKING:
    from torchsplit_core.training.pipeline.engine import PipelineEngine

MEMORY_SAMPLE_S = 1.0
"""Minimum seconds between two samples of free memory."""


class Rebalancer:
    """Keeps micro-batches within memory; with `options.balance` also divides samples, or blocks of stages, by speed.

    `stage_balancer` proposes the blocks; the global batch stays. `pending_move`: what the next attempt starts with,
    None if no block moves. `completed_move`: the move that this attempt completed.
    """

    def __init__(
        self,
        feed: RankBatches,
        strategy: RunStrategy,
        options: RunOptions,
        device: torch.device,
        log_event: Callable[[str, str, int | None], None],
        pipeline: PipelineEngine | None = None,
    ) -> None:
        self.feed, self.predicted, self.device, self._log_event = feed, strategy.predicted, device, log_event
        balanced = options.balance and feed.ranks > 1 and pipeline is None
        self.batch_balancer = BatchBalancer(feed.ranks, feed.global_batch) if balanced else None
        self.pipeline, self.stage_balancer = pipeline, None
        if options.balance and pipeline:
            layers = [len(stage_blocks) for stage_blocks in pipeline.cut]
            self.stage_balancer = StageBalancer(pipeline.blocks, layers, strategy.choices.pipeline)
        self.pending_move: StageMove | None = None
        self.completed_move: PendingMove | None = None
        self._guard = memory_guard.MemoryGuard()
        self._steps = 0
        self._began_s = self._seconds = 0.0
        self._sampled_s, self._free_share = -MEMORY_SAMPLE_S, 1.0
        self._limit_bytes = memory_guard.limit_bytes(device)

    def begin(self, *, step: bool = False) -> None:
        """This rank begins a micro-batch, or a step."""
        self._seconds = 0.0 if step else self._seconds
        self._began_s = time.perf_counter()

    def end_micro_batch(self, counted: int) -> None:
        """This rank's work without the others is done: samples are fetched, the loss of `counted` of them is known."""
        if not counted:
            return
        if self.batch_balancer and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._seconds += time.perf_counter() - self._began_s

    def record(self, seconds: float) -> None:
        """Set the seconds of this rank's own work in the step, if they are measured elsewhere."""
        self._seconds = seconds

    def local_report(
        self,
        loss: float,
        finite: float,
        samples: int,
        *,
        checkpoint_requested: float = 0.0,
        move_s: float = 0.0,
    ) -> RankReport:
        """This rank's report on the step."""
        now = time.monotonic()
        if now - self._sampled_s >= MEMORY_SAMPLE_S:
            self._sampled_s, self._free_share = now, memory_guard.free_share(self.device)
        peak, limit = memory_guard.peak_bytes(self.device), self._limit_bytes
        blocks_s = self.pipeline.blocks_s if self.pipeline and self.stage_balancer else ()
        return RankReport(
            loss,
            finite,
            self._seconds,
            samples,
            now,
            peak,
            self._free_share,
            checkpoint_requested,
            limit,
            move_s,
            blocks_s,
        )

    def after_step(self, step: int, reports: Sequence[RankReport], steps_left: int) -> None:
        """Make the changes that the reports call for. `step`: the completed one."""
        self._steps += 1
        if self._steps == 1:
            self._log_memory(reports)
            if self.stage_balancer:
                self.stage_balancer.skip_step(reports)
            return  # its times include the start
        self._shrink_micro_batch(step, reports)
        if self.stage_balancer:
            self._rebalance_stages(self.stage_balancer, step, reports, steps_left)
        if self.batch_balancer:
            self._rebalance_batch(self.batch_balancer, step, reports)

    def _log_memory(self, reports: Sequence[RankReport]) -> None:
        peaks = [report.peak_bytes for report in reports]
        rank = peaks.index(max(peaks))
        what = "tensors of its GPU" if self.device.type == "cuda" else "the whole process"
        words = f"rank {rank} has used most after a step: {peaks[rank] / GIB:.3g} GiB ({what})"
        if self.predicted:
            words += f"; predicted for the fullest device: {self.predicted.memory_gib:.3g} GiB"
        self._log_event("memory", words, rank)

    def _shrink_micro_batch(self, step: int, reports: Sequence[RankReport]) -> None:
        free = [report.free_share for report in reports]
        now = self.feed.largest_micro_batch
        smaller = self._guard.propose(step, free, now)
        if smaller is None:
            return
        self.feed.micro_batch = smaller
        rank = free.index(min(free))
        words = f"rank {rank} has {min(free):.1%} of its memory left after step {step}: passes of at most {smaller} "
        self._log_event("memory_short", f"{words}samples instead of {now}, the global batch as it was", rank)

    def _rebalance_batch(self, balancer: BatchBalancer, step: int, reports: Sequence[RankReport]) -> None:
        balancer.record([report.seconds for report in reports], [report.samples for report in reports])
        before = self.feed.counts(self.feed.global_batch)
        seconds = balancer.seconds_per_sample() if balancer.ready else ()
        # The first rank's clock counts for all.
        counts = balancer.propose(reports[0].clock_s, before)
        if counts is None:
            return
        self.feed.shares = tuple(float(count) for count in counts)
        slowest = seconds.index(max(seconds))
        words = (
            f"samples of a step by rank: {_format_counts(counts)} instead of "
            f"{_format_counts(before)} after step {step}"
        )
        ratio = max(seconds) / min(seconds)
        self._log_event(
            "balanced",
            f"{words}; rank {slowest} needs {ratio:.2g} times as long for one as the fastest",
            slowest,
        )

    def _rebalance_stages(
        self, balancer: StageBalancer, step: int, reports: Sequence[RankReport], steps_left: int
    ) -> None:
        assert isinstance(self.feed, StageBatches)
        self.pending_move = None
        # The data ranks of the first stage have all samples of the step among them.
        stage_ranks = len(reports) // balancer.processes
        stage = reports[: stage_ranks : stage_ranks // self.feed.ranks]
        if sum(report.samples for report in stage) != self.feed.global_batch:
            balancer.skip_step(reports)
            return
        balancer.record_step(
            reports, self.feed.most_micro_batches(self.feed.global_batch), self.feed.largest_micro_batch
        )
        if self.completed_move and balancer.step_s is not None:
            self._log_measured(self.completed_move, balancer.step_s)
            self.completed_move = None
        self.pending_move = balancer.propose(reports, steps_left)
        if self.pending_move:
            rank = self.pending_move.longest % balancer.processes * stage_ranks
            words = (
                f"moves {self.pending_move.what} after step {step}: {self.pending_move.why}; "
                f"{steps_left} steps are left"
            )
            self._log_event("layers_moving", f"{words}, the move takes about {reports[0].move_s:.3g} s", rank)

    def _log_measured(self, move: PendingMove, step_s: float) -> None:
        words = f"after moving {move.what} a step takes {step_s:.3g} s, {move.step_s:.3g} s before"
        self._log_event("layers_measured", f"{words}; {move.predicted_s:.3g} s were predicted", None)


def _format_counts(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))
