"""Parts of a batch for unlike groups of devices: least longest time, exactly.

Each group has the seconds of every part that it may get; parts add up to the batch. At a threshold of seconds a group
may have the parts whose time does not pass it, and which sums that gives is told by sets of sums as bits of a number.
The set grows with the threshold, so the least threshold at which the batch is among the sums is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence


def best_split(times: Sequence[Mapping[int, float]], batch: int) -> tuple[float, tuple[int, ...]] | None:
    """The least longest time, and a part of 1 or more for each group; None where no parts add up to the batch."""
    levels = sorted({time for group in times for time in group.values()})
    place = bisect_left(levels, True, key=lambda level: _sums(times, level, batch)[-1] >> batch & 1 == 1)
    if place == len(levels):
        return None
    return levels[place], _parts(times, levels[place], batch)


def _sums(times: Sequence[Mapping[int, float]], level: float, batch: int) -> list[int]:
    """Bit s of entry k: the first k groups may have s in all."""
    sums, most = [1], (1 << (batch + 1)) - 1
    for group in times:
        reached = 0
        for part, time in group.items():
            if time <= level:
                reached |= sums[-1] << part
        sums.append(reached & most)
    return sums


def _parts(times: Sequence[Mapping[int, float]], level: float, batch: int) -> tuple[int, ...]:
    """Parts at that threshold, from the last group to the first, each the largest that leaves a sum."""
    sums, left, parts = _sums(times, level, batch), batch, []
    for place in range(len(times) - 1, -1, -1):
        may = (part for part, time in times[place].items() if time <= level and part <= left)
        part = max(part for part in may if sums[place] >> (left - part) & 1)
        parts.append(part)
        left -= part
    return tuple(reversed(parts))
