"""Blocks in a row dealt out to stages of any speed, exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import add

Seconds = Callable[[int, int, int], float]
"""Of a stage with the blocks from one place to before another; infinite where it cannot have them."""


def best_layers(blocks: int, stages: int, seconds: Seconds) -> tuple[int, ...] | None:
    """Blocks of each stage, one at least, whose longest stage is shortest, and of those the least sum of seconds.

    By two dynamic programs over the end of each prefix: best[k][j] = min over i of join(best[k-1][i], seconds of stage
    k with i..j), join the larger of both, then the sum over stages that are no longer than that. None where no division
    is allowed.
    """
    longest, found = _dealt(blocks, stages, seconds, max)
    if found is None:
        return None

    def short_enough(stage: int, first: int, stop: int) -> float:
        own = seconds(stage, first, stop)
        return own if own <= longest else math.inf

    return _dealt(blocks, stages, short_enough, add)[1]


def _dealt(
    blocks: int, stages: int, seconds: Seconds, join: Callable[[float, float], float]
) -> tuple[float, tuple[int, ...] | None]:
    """The least value, and the blocks of each stage; infinite and None where there is none."""
    best = [0.0] + [math.inf] * blocks
    cuts: list[list[int]] = []
    for stage in range(stages):
        after, begins = [math.inf] * (blocks + 1), [0] * (blocks + 1)
        for stop in range(stage + 1, blocks - (stages - stage - 1) + 1):
            for first in range(stage, stop):
                if best[first] == math.inf:
                    continue
                value = join(best[first], seconds(stage, first, stop))
                if value < after[stop]:
                    after[stop], begins[stop] = value, first
        best = after
        cuts.append(begins)
    if best[blocks] == math.inf:
        return math.inf, None
    layers, stop = list[int](), blocks
    for begins in reversed(cuts):
        layers.append(stop - begins[stop])
        stop = begins[stop]
    return best[blocks], tuple(reversed(layers))
