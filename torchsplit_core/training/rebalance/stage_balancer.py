"""Decides, rarely, which blocks to move between pipeline stages, from measured times. No I/O."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

from torchsplit_core.training.pipeline.blocks import BlockCosts
from torchsplit_core.training.rebalance.batch_balancer import MIN_GAIN, WINDOW_STEPS
from torchsplit_core.training.rebalance.memory_guard import MIN_FREE_SHARE
from torchsplit_core.training.rebalance.stage_times import StageTimes
from torchsplit_core.training.rebalance.step_report import RankReport


@dataclass(frozen=True, slots=True)
class StageMove:
    """The number of blocks of each stage after the move, the longest stage before it, and in words what moves and why.

    `step_s`: measured seconds of a step before the move; `predicted_s`: estimated seconds after it.
    """

    layers: tuple[int, ...]
    longest: int
    what: str
    why: str
    step_s: float
    predicted_s: float


class StageBalancer:
    """Divides the blocks anew if a step becomes a tenth shorter and that outweighs what the move takes.

    `layers`: number of blocks of each stage; stage s runs on process s mod `processes`. Seconds of a block are those of
    one micro-batch, forward and backward, on its slowest rank, the median of five steps.
    """

    def __init__(self, blocks: BlockCosts, layers: Sequence[int], processes: int) -> None:
        self.blocks, self.layers, self.processes = blocks, tuple(layers), processes
        self._seconds: deque[tuple[float, ...]] = deque(maxlen=WINDOW_STEPS)
        self._steps: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._recorded = 0
        self._size = 0, 0
        self._clock_s: float | None = None

    def record_step(self, reports: Sequence[RankReport], micro_batches: int, samples: int) -> None:
        """Record the reports on a full step of `micro_batches` micro-batches of `samples` samples."""
        if self._size != (micro_batches, samples):
            self._size = micro_batches, samples
            self._reset()
        # The first rank's clock counts for all.
        if self._clock_s is not None:
            self._steps.append(reports[0].clock_s - self._clock_s)
        self.skip_step(reports)
        self._seconds.append(tuple(map(max, zip(*(report.blocks_s for report in reports), strict=True))))
        self._recorded += 1

    def skip_step(self, reports: Sequence[RankReport]) -> None:
        """Record only when the step ended: for the first step of an attempt, or one with fewer samples."""
        self._clock_s = reports[0].clock_s

    def _reset(self) -> None:
        self._seconds.clear()
        self._steps.clear()
        self._recorded = 0

    @property
    def step_s(self) -> float | None:
        """Median seconds of the last five steps; None while fewer are known."""
        return median(self._steps) if len(self._steps) == WINDOW_STEPS else None

    def propose(self, reports: Sequence[RankReport], steps_left: int) -> StageMove | None:
        """Another division if it is worth what the move takes; it is searched every five steps."""
        step_s = self.step_s
        if step_s is None or self._recorded % WINDOW_STEPS:
            return None
        times = self._stage_times(reports)
        before = times.stages_s(self.layers)
        # What a step does outside the stages stays as it is.
        rest_s = max(0.0, step_s - times.pipeline_s(before))

        def pays(passes_s: float) -> bool:
            gain_s = step_s - rest_s - passes_s
            return gain_s >= MIN_GAIN * step_s and gain_s * steps_left > reports[0].move_s

        # A long chain is searched only if the lower bound pays.
        layers = times.best() if pays(times.min_pipeline_s) else None
        if layers is None:
            return None
        after = times.stages_s(layers)
        predicted_s = rest_s + times.pipeline_s(after)
        if not pays(times.pipeline_s(after)):
            return None
        self._reset()
        why = (
            f"a micro-batch takes {_format_seconds(before)} in the stages (measured), "
            f"{_format_seconds(after)} are reckoned; a step of "
            f"{step_s:.3g} s is predicted to take {predicted_s:.3g} s, {1 - predicted_s / step_s:.0%} less"
        )
        longest = before.index(max(before))
        return StageMove(layers, longest, self._describe_move(layers), why, step_s, predicted_s)

    def _stage_times(self, reports: Sequence[RankReport]) -> StageTimes:
        *seconds, loss_s = [median(samples) for samples in zip(*self._seconds, strict=True)]
        room = [
            (1 - MIN_FREE_SHARE) * report.limit_bytes - report.peak_bytes if report.limit_bytes else math.inf
            for report in reports
        ]
        data = len(reports) // self.processes
        least = tuple(max(0.0, min(room[start : start + data])) for start in range(0, len(reports), data))
        return StageTimes(
            self.blocks, self.layers, self.processes, tuple(seconds), loss_s, *self._size, least
        )

    def _describe_move(self, layers: Sequence[int]) -> str:
        """Which blocks move from which stage to which, as text."""
        changes = [*zip(_stage_of(self.layers), _stage_of(layers), strict=True)]
        moves = []
        for (before, after), places in groupby(range(len(changes)), key=changes.__getitem__):
            if before != after:
                blocks = [*places]
                names = self.blocks.describe(range(blocks[0], blocks[-1] + 1))
                moves.append(f"{names} from stage {before} to stage {after}")
        return ", ".join(moves)


def _stage_of(layers: Sequence[int]) -> list[int]:
    return [stage for stage, count in enumerate(layers) for _ in range(count)]


def _format_seconds(seconds: Sequence[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in seconds) + " s"
