"""What the processes of a pipeline are given: micro-batches of one size, and the loss of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchsplit_core.running.feed import Feed
from torchsplit_core.values import InputFault

Loss = Callable[[Any, Any], Tensor]
"""Of outputs and targets of a batch, the mean over its samples."""


def single(loss: Tensor) -> Tensor:
    """The loss. Raises InputFault where it is not a single number."""
    if loss.dim():
        raise InputFault(
            "the loss",
            f"has the shape {tuple(loss.shape)}, not that of a single number",
            "Return the mean over the batch.",
        )
    return loss


def pass_size(samples: int, micro_batch: int) -> int:
    """Samples of each micro-batch, all alike: the largest number up to `micro_batch` that divides a rank's samples."""
    return max(size for size in range(1, min(samples, micro_batch) + 1) if samples % size == 0)


class StagedFeed(Feed):
    """Of one copy of a pipeline: its stages have buffers for micro-batches of one size."""

    @property
    def largest_pass(self) -> int:
        """Samples of a micro-batch of a whole step, of the rank that has the largest."""
        return max(pass_size(count, self.micro_batch) for count in self.counts(self.global_batch) if count)

    @property
    def most_passes(self) -> int:
        """Micro-batches of a whole step, of the rank that has most."""
        counts = [count for count in self.counts(self.global_batch) if count]
        return max(count // pass_size(count, self.micro_batch) for count in counts)

    def micro_batches(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The samples of this rank's micro-batches, none where it has none."""
        own = self.own(step)
        size = pass_size(len(own), self.micro_batch) if own else 1
        return tuple(tuple(own[start : start + size]) for start in range(0, len(own), size))
