"""Possible segments at a threshold with their times: (multiset of kinds, layer counts, seconds)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.search.segment_table import SegmentTable

STRAIGHT = 1e-12
"""Relative deviation up to which times lie on a straight line over the layers."""


@dataclass(frozen=True)
class Choice:
    """Segments of one multiset (a row of the table) with `low` to `high` layers.

    A segment takes the largest of fixed_s + layer_s · layers over `lines`, so n segments with y layers together take at
    least the largest of fixed_s · n + layer_s · y, with equality if y is distributed evenly.
    """

    multiset: int
    low: int
    high: int
    lines: tuple[tuple[float, float], ...]


class Choices:
    """Every segment of a table that no subset of its GPUs matches in time.

    GPUs can be removed from a segment without losing a link, so for a pipeline with an omitted segment there is another
    that is no slower.
    """

    def __init__(self, table: SegmentTable, costs: PassCosts) -> None:
        self.table = table
        self.seconds = costs.segment_s(table.values)
        row_of = {multiset: row for row, multiset in enumerate(table.multisets)}
        quickest = np.full_like(self.seconds, np.inf)
        for row, multiset in enumerate(table.multisets):
            for number in range(len(multiset) if len(multiset) > 1 else 0):
                part = row_of[multiset[:number] + multiset[number + 1 :]]
                np.minimum(quickest[row], np.minimum(self.seconds[part], quickest[part]), out=quickest[row])
        self._useful = self.seconds < quickest

    def at(self, threshold: float) -> tuple[Choice, ...]:
        """The segments that reach the threshold; a run of layer counts with convex times is one choice."""
        able = self._useful & (self.table.values >= threshold)
        return tuple(
            choice
            for row in np.flatnonzero(able.any(axis=1)).tolist()
            for low, high in _runs(able[row])
            for choice in self._split(row, low, high)
        )

    def _split(self, row: int, low: int, high: int) -> Iterator[Choice]:
        seconds = self.seconds[row, low - 1 : high]
        steps = np.diff(seconds)
        slack = STRAIGHT * float(seconds.max())
        if len(steps) and (np.diff(steps) >= -slack).all():
            straight = seconds[0] + float(steps.mean()) * np.arange(len(seconds))
            if np.abs(straight - seconds).max() <= slack:
                steps = steps.mean(keepdims=True)
            fixed = seconds[: len(steps)] - steps * (low + np.arange(len(steps)))
            yield Choice(row, low, high, tuple(zip(fixed.tolist(), steps.tolist(), strict=True)))
            return
        for count in range(low, high + 1):
            yield Choice(row, count, count, ((float(self.seconds[row, count - 1]), 0.0),))


def _runs(able: np.ndarray) -> list[tuple[int, int]]:
    """First and last layer count of each run of feasible counts."""
    steps = np.diff(np.concatenate([[False], able, [False]]).astype(np.int8))
    return list(
        zip((np.flatnonzero(steps == 1) + 1).tolist(), np.flatnonzero(steps == -1).tolist(), strict=True)
    )
