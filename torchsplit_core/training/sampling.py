"""Which samples a step has and which of them each rank takes: pure functions of the step's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.values import InputFault


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Position of a run in its data: completed epochs, and samples taken in this epoch."""

    epoch: int
    offset: int


def sample_position(step: int, samples: int, global_batch: int) -> DataPosition:
    """Where the step after `step` steps begins; the last step of an epoch takes what is left."""
    epoch, number = divmod(step, steps_per_epoch(samples, global_batch))
    return DataPosition(epoch, number * global_batch)


def steps_per_epoch(samples: int, global_batch: int) -> int:
    """Steps that take every sample once."""
    return -(-samples // global_batch)


def apportion_samples(samples: int, ranks: int, shares: Sequence[float] = ()) -> tuple[int, ...]:
    """Whole samples for each rank that add up to `samples`: by shares (largest remainder), equal without shares."""
    weights = tuple(shares) or (1.0,) * ranks
    exact = [samples * weight / sum(weights) for weight in weights]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(ranks), key=lambda rank: (counts[rank] - exact[rank], rank))
    for rank in by_remainder[: samples - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def check_shares(shares: Sequence[float], ranks: int) -> None:
    """Raises InputFault unless `shares` is empty or has one positive number for each data-parallel rank."""
    wrong = [share for share in shares if not 0 < share < float("inf")]
    if wrong or (shares and len(shares) != ranks):
        problem = f"has {len(shares)} numbers for {ranks} data-parallel ranks"
        if wrong:
            problem = f"has {wrong[0]:g}, which is not a positive number"
        raise InputFault(
            "--shares", problem, "Give one positive number for each rank, for example 3,1 for two."
        )


def count_micro_batches(counts: Sequence[int], micro_batch: int) -> int:
    """Micro-batches of a step: every rank has as many as the rank with most samples, since ranks exchange in each."""
    return max(-(-count // micro_batch) for count in counts)


def split_micro_batches(indices: Sequence[int], parts: int) -> tuple[tuple[int, ...], ...]:
    """A rank's samples for each micro-batch, divided as evenly as possible; with few samples some are empty."""
    sizes = apportion_samples(len(indices), parts)
    starts = [sum(sizes[:number]) for number in range(parts)]
    return tuple(tuple(indices[start : start + size]) for start, size in zip(starts, sizes, strict=True))
