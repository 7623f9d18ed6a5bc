"""Which vectors of thresholds packings refute: GPUs of each kind shared by pipelines without links.

The segments at a threshold change only at the values of segments, so between two of these all thresholds are alike: a
vector is a vector of levels, and a refuted one refutes everything down to the segment values below it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchsplit_core.placement.replicas.joint_program import ThresholdGraphs, packings_fit

_PACK_S = 3.0
"""Seconds of a packing, which takes some milliseconds: one that is cut off is not refuted. Chosen, not measured."""

Levels = tuple[int, ...]
"""Levels of thresholds, descending; level n: up to the n-th segment value; 0: no pipeline."""


class VectorPackings:
    """The packings of a fleet by vectors of thresholds, each asked once."""

    def __init__(self, graphs: ThresholdGraphs) -> None:
        self._graphs = graphs
        values = np.unique(graphs.table.values)
        self._values = values[values > 0]
        self._fitting: list[Levels] = []
        self._refuted: list[Levels] = []

    def fits(self, thresholds: Sequence[float]) -> bool:
        """Whether pipelines of these thresholds may share the fleet; False is a proof."""
        return self._levels_fit(self._levels(thresholds))

    def least_refuted(self, thresholds: Sequence[float]) -> tuple[float, ...]:
        """The least refuted vector below this one, which is refuted: any of its values a level lower fits."""
        levels = list(self._levels(thresholds))
        for place in reversed(range(len(levels))):
            low, high = -1, levels[place]
            while high - low > 1:
                middle = (low + high) // 2
                if self._levels_fit((*levels[:place], middle, *levels[place + 1 :])):
                    low = middle
                else:
                    high = middle
            levels[place] = high
        # All thresholds above the next lower segment value are alike.
        above = np.nextafter(np.concatenate([[0.0], self._values]), np.inf).tolist()
        return tuple(above[level - 1] if level else 0.0 for level in sorted(levels, reverse=True))

    def below(self, threshold: float) -> float:
        """The most that a pipeline is worth which has a segment below the threshold; 0.0 if there is none."""
        index = int(np.searchsorted(self._values, threshold))
        return float(self._values[index - 1]) if index else 0.0

    def _levels(self, thresholds: Sequence[float]) -> Levels:
        places = np.searchsorted(self._values, thresholds) + 1
        return tuple(
            int(place) if threshold > 0 else 0 for place, threshold in zip(places, thresholds, strict=True)
        )

    def _levels_fit(self, levels: Sequence[int]) -> bool:
        wanted = tuple(sorted(levels, reverse=True))
        if wanted and wanted[0] > len(self._values):
            return False
        if any(is_below(wanted, fitting) for fitting in self._fitting):
            return True
        if any(is_below(refuted, wanted) for refuted in self._refuted):
            return False
        thresholds = [float(self._values[level - 1]) for level in wanted if level]
        fits = not thresholds or packings_fit(self._graphs, thresholds, _PACK_S)
        (self._fitting if fits else self._refuted).append(wanted)
        return fits


def is_below(vector: Sequence[float], other: Sequence[float]) -> bool:
    """Whether no value of the vector is above the other's in its place."""
    return all(value <= limit for value, limit in zip(vector, other, strict=True))
