"""A chain cut into stages whose longest is shortest, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise


def cut_evenly(loads: Sequence[float], stages: int) -> tuple[range, ...]:
    """Ranges of places, one a stage and none empty, of which the largest sum of loads is least.

    By dynamic programming over the end of each prefix: best[k][j] = min over i of max(best[k-1][i], sum of i..j).
    Towards smaller i the one falls and the other rises, so that the search for i ends where they cross. Needs at
    least as many loads as stages.
    """
    sums = [0.0, *accumulate(loads)]
    count = len(loads)
    best = [0.0] + [float("inf")] * count
    cuts: list[list[int]] = []
    for stage in range(1, stages + 1):
        after = [float("inf")] * (count + 1)
        begins = [0] * (count + 1)
        for end in range(stage, count - (stages - stage) + 1):
            for begin in range(end - 1, stage - 2, -1):
                own = sums[end] - sums[begin]
                if max(best[begin], own) < after[end]:
                    after[end], begins[end] = max(best[begin], own), begin
                if own >= best[begin]:
                    break
        best = after
        cuts.append(begins)
    ends = [count]
    for begins in reversed(cuts):
        ends.append(begins[ends[-1]])
    ends.reverse()
    return tuple(range(begin, end) for begin, end in pairwise(ends))
