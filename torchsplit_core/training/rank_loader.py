"""One rank's samples of each step, in micro-batches; every rank has the same number of micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from torchsplit_core.model_source import foreign_code
from torchsplit_core.training.sampling import (
    DataPosition,
    apportion_samples,
    count_micro_batches,
    sample_position,
    split_micro_batches,
    steps_per_epoch,
)
from torchsplit_core.values import InputFault


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward and backward pass: a batch, how many of its samples count, whether it is the last of its step.

    A rank without samples left runs one of which no sample counts, since the others wait for it.
    """

    batch: Any
    samples: int
    last: bool


def check_numbered(data: Any, where: str, remedy: str) -> None:
    """Raises InputFault for a dataset without numbers or a length, with this remedy, and for one without samples."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise InputFault(
            where, f"is a {type(data).__name__} without a length or without samples by number", remedy
        )
    if not len(data):
        raise InputFault(where, "has no samples", "Give at least one.")


class RankBatches:
    """The batches of data-parallel rank `rank` of `ranks`, divided by `shares` (empty: equally).

    Raises InputFault for a dataset without a length, without samples, or that can only be iterated: those have
    `StreamBatches`.
    """

    def __init__(
        self, loader: DataLoader[Any], global_batch: int, micro_batch: int, rank: int, ranks: int,
        shares: Sequence[float], seed: int,
    ) -> None:  # fmt: skip
        data: Any = loader.dataset
        check_numbered(
            data,
            "the data",
            "Give a dataset with __len__ and __getitem__, or to a loop of your own an IterableDataset.",
        )
        self.data, self.collate, self.samples = data, loader.collate_fn, len(data)
        self.global_batch, self.micro_batch = global_batch, micro_batch
        self.rank, self.ranks, self.shares = rank, ranks, tuple(shares)
        self.shuffle, self.seed = isinstance(loader.sampler, RandomSampler), seed
        self._order: tuple[int, Sequence[int]] = (-1, ())

    @property
    def steps_per_epoch(self) -> int:
        """Steps that take every sample once."""
        return steps_per_epoch(self.samples, self.global_batch)

    @property
    def largest_micro_batch(self) -> int:
        """Samples of the largest micro-batch of a full step."""
        counts = self.counts(self.global_batch)
        return -(-max(counts) // count_micro_batches(counts, self.micro_batch))

    def counts(self, samples: int) -> tuple[int, ...]:
        """How many of a step's samples each rank takes."""
        return apportion_samples(samples, self.ranks, self.shares)

    def indices(self, step: int) -> Sequence[int]:
        """The samples of the step after `step` steps; the last step of an epoch has what is left."""
        position = sample_position(step, self.samples, self.global_batch)
        if self._order[0] != position.epoch:
            self._order = position.epoch, self._order_of(position.epoch)
        return self._order[1][position.offset : position.offset + self.global_batch]

    def rank_indices(self, step: int) -> Sequence[int]:
        """This rank's samples of that step."""
        indices = self.indices(step)
        counts = self.counts(len(indices))
        start = sum(counts[: self.rank])
        return indices[start : start + counts[self.rank]]

    def iter_micro_batches(self, step: int) -> Iterator[MicroBatch]:
        """This rank's micro-batches of that step."""
        parts = self.parts(step)
        for number, part in enumerate(parts, start=1):
            yield MicroBatch(self.batch(part or self.uncounted(step)), len(part), number == len(parts))

    def parts(self, step: int) -> tuple[tuple[int, ...], ...]:
        """The samples of each of this rank's micro-batches of that step; with few samples some are empty."""
        counts = self.counts(len(self.indices(step)))
        return split_micro_batches(self.rank_indices(step), count_micro_batches(counts, self.micro_batch))

    def uncounted(self, step: int) -> tuple[int, ...]:
        """The sample of a micro-batch that has none of its own."""
        return tuple(self.indices(step)[:1])

    def begin_step(self, step: int) -> int:
        """How many samples of all ranks the step after `step` steps has."""
        return len(self.indices(step))

    def position(self, step: int) -> DataPosition:
        """Where that step begins: completed epochs, and samples since."""
        return sample_position(step, self.samples, self.global_batch)

    def state(self) -> dict[str, str]:
        """What a checkpoint keeps of the data besides the step, as text by name."""
        return {}

    def load(self, run_state: Mapping[str, str], step: int) -> None:
        """Go on after `step` steps, with what the checkpoint kept."""

    def batch(self, indices: Sequence[int]) -> Any:
        """These samples, collated."""
        with foreign_code("the data"):
            return self.collate([self.data[index] for index in indices])

    def _order_of(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(self.samples)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        order: list[int] = torch.randperm(self.samples, generator=generator).tolist()
        return order
