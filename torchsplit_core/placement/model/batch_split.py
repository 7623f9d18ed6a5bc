"""The batch divided among the GPUs of a segment so that the slowest of them finishes first.

A part b_g takes b_g / rate_g(b_g). Within a time limit each GPU has a set of feasible parts, a few intervals; the batch
can be divided exactly if it lies in the sum of these sets. The sets grow with the limit, so bisection finds the least
limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torchsplit_core.placement.model.speed import Intervals, Speed

PRECISION = 1e-13
"""Relative width at which bisection ends, which is about the error of the throughput."""


def proportional_parts(
    speeds: Sequence[Speed], most: Sequence[float], batch: float, layers: int
) -> tuple[float, ...] | None:
    """Real parts above 0 that add up to the batch, part g at most most[g], of least max_g part_g / rate_g(part_g).

    None if the GPUs cannot take the batch. Proven by intervals, so rates need not be monotone.
    """
    most = [min(limit, batch) for limit in most]
    if min(most) <= 0 or sum(most) < batch:
        return None
    start = tuple(batch * limit / sum(most) for limit in most)
    parts = _single_interval_split(speeds, most, batch, layers, _time(speeds, start, layers))
    return parts or _by_halving(speeds, most, batch, layers, start)


def _single_interval_split(
    speeds: Sequence[Speed], most: Sequence[float], batch: float, layers: int, time: float
) -> tuple[float, ...] | None:
    """The usual case, a hundred times faster: each GPU's feasible parts begin at 0, and the sums have no jump.

    `time` is enough for the batch. None in other cases.
    """
    # Imported late: equal parts do without it, and start twice as fast.
    from scipy.optimize import brentq

    groups = Counter(zip(speeds, most, strict=True))

    def surplus(limit: float) -> float:
        total = -batch
        for (speed, limit_part), count in groups.items():
            intervals = speed.parts_within(limit, layers)
            if not intervals:
                return -batch
            if len(intervals) > 1 or intervals[0][0] > 0:
                raise _SeveralIntervals
            total += count * min(intervals[0][1], limit_part)
        return total

    high = time * (1 + PRECISION)
    try:
        if surplus(high) < 0:
            return None
        low = high / 2
        while surplus(low) >= 0:
            low, high = low / 2, low
        limit = brentq(surplus, low, high, xtol=PRECISION * low, rtol=PRECISION)
        if not abs(surplus(limit)) <= 10 * PRECISION * batch:
            return None
    except _SeveralIntervals:
        return None
    parts = [
        min(speed.parts_within(limit, layers)[0][1], limit_part)
        for speed, limit_part in zip(speeds, most, strict=True)
    ]
    return tuple(part * batch / sum(parts) for part in parts)


class _SeveralIntervals(Exception):
    """A GPU's feasible parts are not one interval that begins at 0."""


def _by_halving(
    speeds: Sequence[Speed], most: Sequence[float], batch: float, layers: int, start: tuple[float, ...]
) -> tuple[float, ...]:
    """The general case by bisection. `start`: feasible parts."""
    high = _time(speeds, start, layers)
    low = high / 2
    while _sums(speeds, most, batch, layers, low):
        low, high = low / 2, low
    while high - low > PRECISION * high:
        middle = low + (high - low) / 2
        if _sums(speeds, most, batch, layers, middle):
            high = middle
        else:
            low = middle
    sums = _sums(speeds, most, batch, layers, high)
    # The start lies on the edge of its own limit, and rounding may exclude it.
    return _divide(sums, batch) if sums else start


def _time(speeds: Sequence[Speed], parts: Sequence[float], layers: int) -> float:
    return max(part / speed.rate(part, layers) for speed, part in zip(speeds, parts, strict=True))


Sums = list[tuple[Intervals, Intervals]]
"""For each GPU in turn: its feasible parts, and the sums of those of the GPUs up to it."""


def _sums(
    speeds: Sequence[Speed], most: Sequence[float], batch: float, layers: int, limit: float
) -> Sums | None:
    """Every GPU's feasible parts within the limit and their sums; None if these exclude the batch."""
    sums: Sums = []
    together: Intervals = ((0.0, 0.0),)
    known: dict[tuple[int, float], Intervals] = {}
    for speed, limit_part in zip(speeds, most, strict=True):
        key = (id(speed), limit_part)
        if key not in known:
            known[key] = tuple(
                (low, min(high, limit_part))
                for low, high in speed.parts_within(limit, layers)
                if low < limit_part
            )
        together = _interval_sum(together, known[key])
        sums.append((known[key], together))
    # Lower ends count as open: a part is above 0.
    return sums if any(low < batch <= high for low, high in together) else None


def _interval_sum(first: Intervals, second: Intervals) -> Intervals:
    pairs = sorted((a + c, b + d) for a, b in first for c, d in second)
    joined: list[tuple[float, float]] = []
    for low, high in pairs:
        if joined and low < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def _divide(sums: Sums, batch: float) -> tuple[float, ...]:
    """Parts in the sets that add up to the batch: each at the same share of its interval's width."""
    parts: list[float] = []
    left = batch
    for index in range(len(sums) - 1, 0, -1):
        pairs = [(interval, before) for interval in sums[index][0] for before in sums[index - 1][1]]
        # The pair that has it nearest to the middle: rounding may carry the rest just over an end.
        interval, before = max(pairs, key=lambda p: min(left - p[0][0] - p[1][0], p[0][1] + p[1][1] - left))
        least, width = interval[0] + before[0], interval[1] - interval[0] + before[1] - before[0]
        share = min(1.0, max(0.0, (left - least) / width)) if width > 0 else 1.0
        part = interval[0] + share * (interval[1] - interval[0])
        parts.append(part)
        left -= part
    return (left, *reversed(parts))
