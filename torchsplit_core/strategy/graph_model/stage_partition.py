"""Cuts a chain into stages so that the longest stage is shortest, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import add

Seconds = Callable[[int, int, int], float]
"""Seconds of a stage from its number and the range of its parts: never fewer with more parts, infinite if it cannot
hold them."""


def partition_evenly(loads: Sequence[float], stages: int) -> tuple[range, ...]:
    """Ranges of positions, one a stage and none empty, that minimise the largest sum of loads.

    Needs at least as many loads as stages.
    """
    sums = [0.0, *accumulate(loads)]
    _, ends = _partition(len(loads), stages, lambda stage, first, stop: sums[stop] - sums[first], max)
    return tuple(range(first, stop) for first, stop in pairwise(ends))


def best_layers(parts: int, stages: int, seconds: Seconds) -> tuple[int, ...] | None:
    """Parts of each stage (one at least) that minimise the longest stage and then the sum of seconds.

    None if no division is allowed.
    """
    longest, ends_found = _partition(parts, stages, seconds, max)
    if not ends_found:
        return None

    def short_enough(stage: int, first: int, stop: int) -> float:
        stage_s = seconds(stage, first, stop)
        return stage_s if stage_s <= longest else math.inf

    _, ends = _partition(parts, stages, short_enough, add)
    return tuple(stop - first for first, stop in pairwise(ends))


def _partition(
    parts: int, stages: int, seconds: Seconds, join: Callable[[float, float], float]
) -> tuple[float, list[int]]:
    """The least value, and the positions between which the stages lie; infinite and empty if there is no division.

    Dynamic programming over the end of each prefix: best[k][j] = min over i of join(best[k-1][i], seconds of stage k
    with i..j). For smaller i the seconds rise and, if `join` is the maximum, best[k-1][i] falls: the search for i ends
    where they cross.
    """
    best = [0.0] + [math.inf] * parts
    cuts: list[list[int]] = []
    for stage in range(stages):
        after, begins = [math.inf] * (parts + 1), [0] * (parts + 1)
        for stop in range(stage + 1, parts - (stages - stage - 1) + 1):
            for first in range(stop - 1, stage - 1, -1):
                stage_s = seconds(stage, first, stop)
                value = join(best[first], stage_s)
                if value < after[stop]:
                    after[stop], begins[stop] = value, first
                if stage_s == math.inf or (join is max and stage_s >= best[first]):
                    break
        best = after
        cuts.append(begins)
    if best[parts] == math.inf:
        return math.inf, []
    ends = [parts]
    for begins in reversed(cuts):
        ends.append(begins[ends[-1]])
    return best[parts], ends[::-1]
