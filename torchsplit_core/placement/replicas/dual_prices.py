"""Values and costs of segments at prices of the GPUs, in bands of value: which GPUs can take part in each.

A pipeline of a value above l with several segments lies within one component of the links above l. A component whose
GPUs cannot hold all layers there, even with divisible segments, has no pipeline of such a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.replicas.upper_bounds import SLACK, cover_prices
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.segment_table import Items, SegmentTable, items_at

_BANDS = 12
"""Bands of link values, spread evenly over all; fewer make a weaker bound. Chosen, not measured."""


@dataclass(frozen=True)
class _ValueBand:
    """Values above `low`. able: the multisets (bool) of possible segments of such a pipeline.

    size, count: multisets and layer counts of segments that reach `low`, by descending value; worth: the value of a
    pipeline that has them, none above the band.
    """

    low: float
    able: np.ndarray
    size: np.ndarray
    count: np.ndarray
    worth: np.ndarray


class DualPrices:
    """All segments of an instance, for pipelines of no higher value than `best`."""

    def __init__(
        self, instance: ProblemInstance, table: SegmentTable, best: float, clock: SearchClock
    ) -> None:
        self._table, self._layers = table, instance.layers
        levels = np.unique(instance.links[~np.eye(len(instance.kinds), dtype=bool)])
        levels = levels[(levels > 0) & (levels < best)]
        if len(levels) >= _BANDS:
            levels = levels[np.linspace(0, len(levels) - 1, _BANDS - 1).astype(np.int64)]
        lows = [0.0, *levels.tolist()]
        self._bands = [
            self._band(instance, low, top, clock) for low, top in zip(lows, [*lows[1:], best], strict=True)
        ]

    def surplus(self, prices_by_kind: np.ndarray) -> tuple[float, float]:
        """The largest value of a pipeline minus the cost of its GPUs (negative if all cost more), and its value."""
        best, value = -np.inf, 0.0
        for band in self._bands:
            if len(band.worth):
                cost = (self._table.counts[band.size] @ prices_by_kind) / band.count
                over = band.worth - self._layers * np.minimum.accumulate(cost)
                index = int(np.argmax(over))
                if over[index] > best:
                    best, value = float(over[index]), float(band.worth[index])
        return best, value

    def items(self, threshold: float) -> Items:
        """The possible segments of a pipeline that reaches the threshold."""
        items = items_at(self._table, threshold, len(self._table.multisets))
        band = max(
            (candidate for candidate in self._bands if candidate.low < threshold),
            key=lambda candidate: candidate.low,
        )
        keep = band.able[items.multiset] | (items.high >= self._layers)
        return items.only(np.flatnonzero(keep))

    def _band(self, instance: ProblemInstance, low: float, top: float, clock: SearchClock) -> _ValueBand:
        table = self._table
        able = self._feasible_multisets(instance, float(np.nextafter(low, np.inf)), clock)
        fits = table.values > low
        fits[~able, :-1] = False
        size, count = np.nonzero(fits)
        order = np.argsort(-table.values[size, count], kind="stable")
        size, count = size[order], count[order]
        return _ValueBand(low, able, size, count + 1, np.minimum(table.values[size, count], top))

    def _feasible_multisets(
        self, instance: ProblemInstance, threshold: float, clock: SearchClock
    ) -> np.ndarray:
        """Multisets whose kinds are all in a component that can hold all layers."""
        table, kinds = self._table, np.array(instance.kinds)
        items = items_at(table, threshold, instance.max_gpus)
        usable = np.flatnonzero((items.counts.sum(axis=0) > 0)[kinds])
        fleets = {
            tuple(np.bincount(kinds[component.gpus], minlength=table.counts.shape[1]).tolist())
            for component in components(instance.links, usable, threshold)
        }
        able = np.zeros(len(table.multisets), dtype=bool)
        for fleet in fleets:
            fleet_counts = np.array(fleet)
            if (
                fleet_counts @ cover_prices(items, fleet_counts, instance.layers, clock)
                >= instance.layers - SLACK
            ):
                able |= (table.counts[:, fleet_counts == 0] == 0).all(axis=1)
        return able
