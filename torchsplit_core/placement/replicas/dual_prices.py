"""What segments are worth and cost at prices of the GPUs, in bands of value: which GPUs can take part in each.

A pipeline of a value above l with several segments lies within one component of the links above l. A component whose
GPUs cannot hold all layers there, divided as finely as one likes, has no pipeline of such a value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.replicas.upper_bounds import SLACK, prices
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.table import Items, Table, items_at

_BANDS = 12
"""Intervals of link values that are told apart, spread evenly over all; fewer make a weaker bound. Chosen, not
measured."""


@dataclass(frozen=True)
class _Band:
    """Values above `low`. able: the multisets (bool) that a segment of such a pipeline can be.

    size, count: multisets and layer counts of segments that reach `low`, by falling value; worth: of a pipeline that
    has them, none above the band.
    """

    low: float
    able: np.ndarray
    size: np.ndarray
    count: np.ndarray
    worth: np.ndarray


class DualPrices:
    """All segments of an instance, for pipelines of no higher value than `best`."""

    def __init__(self, instance: Instance, table: Table, best: float, clock: Clock) -> None:
        self._table, self._layers = table, instance.layers
        levels = np.unique(instance.links[~np.eye(len(instance.kinds), dtype=bool)])
        levels = levels[(levels > 0) & (levels < best)]
        if len(levels) >= _BANDS:
            levels = levels[np.linspace(0, len(levels) - 1, _BANDS - 1).astype(np.int64)]
        lows = [0.0, *levels.tolist()]
        self._bands = [
            self._band(instance, low, top, clock) for low, top in zip(lows, [*lows[1:], best], strict=True)
        ]

    def surplus(self, priced: np.ndarray) -> tuple[float, float]:
        """What a pipeline is worth beyond its GPUs at most, below 0 where all cost more; and the value of that one."""
        best, value = -np.inf, 0.0
        for band in self._bands:
            if len(band.worth):
                cost = (self._table.counts[band.size] @ priced) / band.count
                over = band.worth - self._layers * np.minimum.accumulate(cost)
                index = int(np.argmax(over))
                if over[index] > best:
                    best, value = float(over[index]), float(band.worth[index])
        return best, value

    def items(self, threshold: float) -> Items:
        """What segments of a pipeline that reaches the threshold can be."""
        found = items_at(self._table, threshold, len(self._table.multisets))
        band = max((one for one in self._bands if one.low < threshold), key=lambda one: one.low)
        keep = band.able[found.multiset] | (found.high >= self._layers)
        return found.only(np.flatnonzero(keep))

    def _band(self, instance: Instance, low: float, top: float, clock: Clock) -> _Band:
        table = self._table
        able = self._able(instance, float(np.nextafter(low, np.inf)), clock)
        fits = table.values > low
        fits[~able, :-1] = False
        size, count = np.nonzero(fits)
        order = np.argsort(-table.values[size, count], kind="stable")
        size, count = size[order], count[order]
        return _Band(low, able, size, count + 1, np.minimum(table.values[size, count], top))

    def _able(self, instance: Instance, threshold: float, clock: Clock) -> np.ndarray:
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
            own = np.array(fleet)
            if own @ prices(items, own, instance.layers, clock) >= instance.layers - SLACK:
                able |= (table.counts[:, own == 0] == 0).all(axis=1)
        return able
