"""Splits a batch over unlike groups of devices so that the longest time is least, exactly.

Each group has the seconds of every part that it may get; parts add up to the batch. A threshold of seconds admits the
parts that take no longer, and an integer used as a bit set holds the sums that they can reach. The set grows with the
threshold, so bisection finds the least threshold whose sums include the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence


def best_split(times: Sequence[Mapping[int, float]], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """The least longest time, and a part of 1 or more for each group; None if no parts add up to the batch."""
    levels = sorted({time for group in times for time in group.values()})
    place = bisect_left(levels, True, key=lambda level: _sums(times, level, batch)[-1] >> batch & 1 == 1)
    if place == len(levels):
        return None
    return levels[place], _parts(times, levels[place], batch)


def _sums(times: Sequence[Mapping[int, float]], level: float, batch: int) -> list[int]:
    """Bit s of entry k: the first k groups can have s sequences in total."""
    sums, most = [1], (1 << (batch + 1)) - 1
    for group in times:
        reached = 0
        for part, time in group.items():
            if time <= level:
                reached |= sums[-1] << part
        sums.append(reached & most)
    return sums


def _parts(times: Sequence[Mapping[int, float]], level: float, batch: int) -> tuple[int, ...]:
    """Parts at that threshold, from the last group to the first, each the largest that leaves a reachable sum."""
    sums, left, parts = _sums(times, level, batch), batch, []
    for place in range(len(times) - 1, -1, -1):
        may = (part for part, time in times[place].items() if time <= level and part <= left)
        part = max(part for part in may if sums[place] >> (left - part) & 1)
        parts.append(part)
        left -= part
    return tuple(reversed(parts))
