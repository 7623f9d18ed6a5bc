"""Validation of batch sizes and sequence lengths."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.values import InputFault
from torchsplit_core.values.errors import quoted

LARGEST_MEASURED_BATCH = 4096
MOST_BATCH_SIZES = 16
LARGEST_SEQUENCE_LENGTH = 1_048_576
MOST_SEQUENCE_LENGTHS = 16


def check_batch_sizes(batch_sizes: Sequence[int]) -> tuple[int, ...]:
    """The grid, ascending, each size once. Raises InputFault for an empty, long, non-positive or huge one."""
    for size in batch_sizes:
        if not is_count(size, LARGEST_MEASURED_BATCH):
            problem = f"{quoted(size)} is no whole number from 1 to {LARGEST_MEASURED_BATCH:,}"
            raise InputFault("batch sizes", problem, "Give for example 1,2,4,8.")
    distinct = sorted(set(batch_sizes))
    _check_count("batch sizes", len(distinct), MOST_BATCH_SIZES)
    return tuple(distinct)


def check_sequence_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """The lengths in order, each once. Raises InputFault for none, too many, or one out of range."""
    distinct = dict.fromkeys(lengths)
    for length in distinct:
        if not is_count(length, LARGEST_SEQUENCE_LENGTH):
            problem = f"{quoted(length)} is no whole number from 1 to {LARGEST_SEQUENCE_LENGTH:,}"
            raise InputFault("sequence lengths", problem, "Give for example 128,512.")
    _check_count("sequence lengths", len(distinct), MOST_SEQUENCE_LENGTHS)
    return tuple(distinct)


def is_count(value: object, most: int) -> bool:
    """Whether it is an integer from 1 to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _check_count(where: str, count: int, most: int) -> None:
    if not count:
        raise InputFault(where, "none are given", "Give at least one.")
    if count > most:
        raise InputFault(where, f"{count} are given, at most {most} are measured at once", "Give fewer.")
