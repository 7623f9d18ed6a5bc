"""Decides, rarely, how to divide a step's samples by the measured speed of the ranks. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from torchsplit_core.training.sampling import apportion_samples
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import SHARDED

WINDOW_STEPS = 5
"""A rank's speed is the median of this many steps."""
MIN_GAIN = 0.1
"""Share by which the slowest rank's part of the step must become shorter for a change."""
MIN_INTERVAL_S = 60.0
"""Minimum seconds between two changes."""


class BatchBalancer:
    """Samples of a step for each data-parallel rank, in proportion to its samples per second."""

    def __init__(self, ranks: int, global_batch: int) -> None:
        self.ranks, self.global_batch = ranks, global_batch
        self._times: list[deque[float]] = [deque(maxlen=WINDOW_STEPS) for _ in range(ranks)]
        self._changed_s: float | None = None

    def record(self, seconds: Sequence[float], samples: Sequence[float]) -> None:
        """Record the seconds of the ranks for their samples of a step; a rank without samples adds nothing."""
        for times, took, count in zip(self._times, seconds, samples, strict=True):
            if count:
                times.append(took / count)

    @property
    def ready(self) -> bool:
        """Whether every rank's speed is known."""
        return all(len(times) == WINDOW_STEPS for times in self._times)

    def propose(self, now_s: float, counts: Sequence[int]) -> tuple[int, ...] | None:
        """Better counts for a full step; None if the gain is small or the last change less than MIN_INTERVAL_S ago."""
        if not self.ready:
            return None
        if self._changed_s is not None and now_s - self._changed_s < MIN_INTERVAL_S:
            return None
        sample_s = self.seconds_per_sample()
        proposed = self._counts(sample_s)
        if _slowest(proposed, sample_s) > (1 - MIN_GAIN) * _slowest(counts, sample_s):
            return None
        self._changed_s = now_s
        for times in self._times:
            times.clear()
        return proposed

    def seconds_per_sample(self) -> tuple[float, ...]:
        """The median of each rank over the last steps."""
        return tuple(max(median(times), 1e-9) for times in self._times)

    def _counts(self, sample_s: Sequence[float]) -> tuple[int, ...]:
        """Counts by speed, at least one for each: a rank without samples is not measured and would get none again."""
        counts = list(apportion_samples(self.global_batch, self.ranks, [1 / seconds for seconds in sample_s]))
        while 0 in counts:
            counts[counts.index(max(counts))] -= 1
            counts[counts.index(0)] += 1
        return tuple(counts)


def _slowest(counts: Sequence[int], sample_s: Sequence[float]) -> float:
    return max(count * seconds for count, seconds in zip(counts, sample_s, strict=True))


def check_balance(strategy: RunStrategy) -> None:
    """Raises InputFault if ranks wait for each other inside a pass, so that no rank's own speed can be measured.

    Stages of a pipeline are timed without their waits: there blocks move, not samples.
    """
    choices = strategy.choices
    if choices.pipeline > 1:
        return
    waits = {
        f"shard {choices.shard}": choices.shard in SHARDED,
        f"tensor {choices.tensor}": choices.tensor > 1,
        f"context {choices.context}": choices.context > 1,
        f"expert {choices.expert}": choices.expert > 1,
    }
    for option, waiting in waits.items():
        if waiting:
            raise InputFault(
                "--balance",
                f"does not work with {option}: ranks wait for each other inside a pass, so that none is timed alone",
                "Give --shares, or fix shard to none or zero1, and tensor, context and expert to 1.",
            )
