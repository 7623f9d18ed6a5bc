"""Prices met at a level, with what every option of every model costs at them: what they close is looked up.

A price vector refutes all boxes in which the models' cheapest options cost more than a fleet is worth. A search meets
hundreds of boxes and of prices, and many boxes, and parts of others, are refuted by prices of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.fractional.model_patterns.level_program import ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.pattern_pricing import PricedOptions
from torchsplit_core.planning.fractional.model_patterns.patterns import Box, Integers, Pattern, Vector
from torchsplit_core.planning.patterns.capacity import Counts
from torchsplit_core.planning.tolerance import TOLERANCE

MAX_PRICES = 2000
"""Price vectors above which the oldest is left out."""

JUST_REFUTED, LEAST_GAIN = 1e-3, 1e-6
"""Parts of the fleet's worth: by which a refuted part is as good as any, and that counts where a part gains nothing."""


@dataclass(frozen=True, slots=True)
class BoxDivision:
    """A model to divide, the first option of its upper range, and whether known prices refute a part."""

    model: int
    option: int
    refutes: bool = False


class PricePool:
    """The prices met for rates (requests/s by model); `slices` are those of the fleets, by pool."""

    def __init__(self, patterns: ModelPatterns, rates: Mapping[int, float], slices: Counts) -> None:
        self.patterns, self.rates, self.slices = patterns, dict(rates), slices.astype(np.float64)
        counts = [len(patterns.options[model]) for model in rates]
        self.starts = dict(zip(rates, (np.cumsum(counts) - counts).tolist(), strict=True))
        self.costs: Vector = np.zeros((0, sum(counts)))
        """Prices × options, models one after the other, in parts of what the fleet worth most is worth."""
        self.worth: Vector = np.zeros((0, slices.shape[1]))
        """Prices × pools, what a slice is worth."""
        self.prices: list[Vector] = []
        self.add(patterns.whole_box, patterns.first_prices())

    def add(self, box: Box, prices: Vector) -> PricedOptions:
        """Price all options, those of a box exactly."""
        priced = self.patterns.by_option(box, prices, self.rates)
        worth: Vector = prices.sum(axis=1)
        most = float((self.slices @ worth).max()) or 1.0
        latest = slice(max(0, len(self.costs) - MAX_PRICES + 1), None)
        self.costs = np.vstack([self.costs[latest], priced.bounds / most])
        self.worth = np.vstack([self.worth[latest], worth / most])
        self.prices = [*self.prices[latest], prices / most]
        return priced

    def adapt(self, rates: Mapping[int, float]) -> None:
        """Have other rates: at lower ones no costs are known, at higher ones they hold."""
        lower = any(rate < self.rates[model] for model, rate in rates.items())
        self.rates = dict(rates)
        if lower:
            self.costs, self.worth, self.prices = self.costs[:0], self.worth[:0], []
            self.add(self.patterns.whole_box, self.patterns.first_prices())

    def nearest(self, box: Box) -> Vector:
        """The prices at which the box is nearest to refuted for all fleets."""
        least = sum(self._by_model(box).values(), np.zeros(len(self.costs)))
        return self.prices[int(least.argmax())]

    def columns(self, box: Box, model: int) -> slice:
        """The columns of a model's options in a box."""
        first, end = box[model]
        return slice(self.starts[model] + first, self.starts[model] + end)

    def cheapest(self, priced: PricedOptions, box: Box, most: int) -> Iterator[tuple[int, Pattern]]:
        """So many of each model's cheapest patterns in the box, one an option."""
        for model in self.rates:
            columns = self.columns(box, model)
            for place in np.argsort(priced.bounds[columns])[:most].tolist():
                yield model, priced.pattern(columns.start + place)

    def last_open(self, box: Box, fleets: Integers) -> Integers:
        """The fleets that the last prices do not close."""
        least = sum(float(self.costs[-1, self.columns(box, model)].min()) for model in self.rates)
        still_open: Integers = fleets[self.slices[fleets] @ self.worth[-1] * (1 + TOLERANCE) >= least]
        return still_open

    def likely(self, box: Box, fleets: Integers) -> int:
        """The fleet that all prices leave most of."""
        least = sum(self._by_model(box).values(), np.zeros(len(self.costs)))
        return int(fleets[(self._worth(fleets) - least[:, None]).min(axis=0).argmax()])

    def shrink(self, box: Box, fleets: Integers) -> tuple[Box, Integers]:
        """The box without options at either end of a range that are refuted for all fleets, and those still open."""
        box, worth, by_model = dict(box), self._worth(fleets) * (1 + TOLERANCE), self._by_model(box)
        while True:
            least = sum(by_model.values(), np.zeros(len(self.costs)))
            is_open = (worth >= least[:, None]).all(axis=0)
            fleets, worth = fleets[is_open], worth[:, is_open]
            if not len(fleets):
                return box, fleets
            others = least - worth.max(axis=1)
            for model, model_least in by_model.items():
                costs = self.costs[:, self.columns(box, model)]
                possible = np.flatnonzero(((others - model_least)[:, None] + costs <= 0).all(axis=0))
                if not len(possible):
                    return box, fleets[:0]
                if len(possible) < costs.shape[1] and possible[-1] - possible[0] + 1 < costs.shape[1]:
                    first = box[model][0]
                    box[model] = first + int(possible[0]), first + int(possible[-1]) + 1
                    by_model[model] = self.costs[:, self.columns(box, model)].min(axis=1)
                    break
            else:
                return box, fleets

    def divide(self, box: Box, fleet: int) -> BoxDivision | None:
        """Where a division brings both parts nearest to refuted on a fleet; None where every model has one option."""
        by_model = self._by_model(box)
        excess = sum(by_model.values(), np.zeros(len(self.costs))) - self._worth(np.array([fleet]))[:, 0]
        before = float(excess.max())
        best: tuple[float, BoxDivision] | None = None
        for model, least in by_model.items():
            costs = self.costs[:, self.columns(box, model)]
            if costs.shape[1] < 2:
                continue
            others = (excess - least)[:, None]
            lower = (others + np.minimum.accumulate(costs, axis=1)[:, :-1]).max(axis=0)
            upper = (others + np.minimum.accumulate(costs[:, ::-1], axis=1)[:, -2::-1]).max(axis=0)
            gains = [
                np.maximum(np.minimum(part, JUST_REFUTED) - before, LEAST_GAIN) for part in (lower, upper)
            ]
            scores = gains[0] * gains[1]
            at = int(scores.argmax())
            if best is None or scores[at] > best[0]:
                refutes = bool(max(lower[at], upper[at]) > TOLERANCE)
                best = float(scores[at]), BoxDivision(model, box[model][0] + at + 1, refutes)
        return None if best is None else best[1]

    def _by_model(self, box: Box) -> dict[int, Vector]:
        """What each model costs at least in a box, by prices."""
        return {model: self.costs[:, self.columns(box, model)].min(axis=1) for model in self.rates}

    def _worth(self, fleets: Integers) -> Vector:
        """What fleets are worth (prices × fleets)."""
        worth: Vector = self.worth @ self.slices[fleets].T
        return worth
