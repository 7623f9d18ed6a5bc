"""The batches of a pipeline's processes: micro-batches of equal size, and the loss of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchsplit_core.training.rank_loader import RankBatches
from torchsplit_core.values import InputFault

Loss = Callable[[Any, Any], Tensor]
"""Takes outputs and targets of a batch; returns the mean over its samples."""


def scalar_loss(loss: Tensor) -> Tensor:
    """The loss. Raises InputFault if it is not a single number."""
    if loss.dim():
        raise InputFault(
            "the loss",
            f"has the shape {tuple(loss.shape)}, not that of a single number",
            "Return the mean over the batch.",
        )
    return loss


def micro_batch_size(samples: int, micro_batch: int) -> int:
    """Samples of every micro-batch: the largest number up to `micro_batch` that divides a rank's samples."""
    return max(size for size in range(1, min(samples, micro_batch) + 1) if samples % size == 0)


class StageBatches(RankBatches):
    """The batches of one copy of a pipeline, whose stages have buffers for micro-batches of one size."""

    @property
    def largest_micro_batch(self) -> int:
        """Samples of the largest micro-batch that any rank has in a full step."""
        return max(
            micro_batch_size(count, self.micro_batch) for count in self.counts(self.global_batch) if count
        )

    def most_micro_batches(self, samples: int) -> int:
        """The most micro-batches that any rank has in a step of so many samples."""
        counts = [count for count in self.counts(samples) if count]
        return max(count // micro_batch_size(count, self.micro_batch) for count in counts)

    def micro_batch_indices(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The samples of each of this rank's micro-batches; empty if it has none."""
        indices = self.rank_indices(step)
        size = micro_batch_size(len(indices), self.micro_batch) if indices else 1
        return tuple(tuple(indices[start : start + size]) for start in range(0, len(indices), size))
