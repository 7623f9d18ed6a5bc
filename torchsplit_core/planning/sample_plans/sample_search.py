"""Which samples to hold: levels from a program of price bounds, tried by the planner one point after the other.

The program's rows of prices hold for every plan, so its value bounds all of them; the planner says whether the minima
of its solution can be met, and at what cost. Minima that it refuses rule out every point above them. So the search ends
with a proof: no level is left that could be better.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.planning.sample_plans.price_rows import PriceRow, Pricing
from torchsplit_core.planning.sample_plans.sample_levels import (
    MOST_LEVELS,
    Numbers,
    Rates,
    SampleLevels,
    sample_levels,
)
from torchsplit_core.planning.sample_plans.sample_program import SamplePoint, SampleProgram
from torchsplit_core.planning.timing import partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE

PROGRAM_SHARE, ASK_SHARE = 0.4, 0.4
"""Parts of the remaining time for one program, and for one question to the planner."""

MOST_ROWS = 30
"""Rows of prices in a program: of more the last ones."""

FINER = 4
"""Times the levels of a program that could not tell refused points from others."""

FLEET_PARTS = (1.0, 0.995, 0.985, 0.97, 0.94, 0.9)
"""Parts of the fleet's worth for which points are sought, each after the planner refused one at the part before."""

FIRST_BRACKET = 0.005
"""Part of the samples to which the first share by halving is narrowed."""


@dataclass(frozen=True)
class MinimaAnswer:
    """What the planner says of some minima: a plan gives `rates` at `cost` (None: no plan), and none costs less than
    `bound` (infinite: none exists).
    """

    bound: float
    cost: float | None = None
    rates: Rates | None = None


Ask = Callable[[Rates, float], MinimaAnswer]
"""Asks the planner about minima (requests/s, by model) until a deadline (time.perf_counter)."""


@dataclass
class SampleSearch:
    """What both searches share. `entries[i, m]`: requests/s of model m in sample i; `least`: minima that always hold.

    `best` is the answer of the best plan. `refused` are minima that need no second look.
    """

    entries: Rates
    least: Rates
    pricing: Pricing | None
    ask: Ask
    deadline: float
    best: MinimaAnswer | None = None
    rows: list[PriceRow] = field(default_factory=list)
    refused: list[Rates] = field(default_factory=list)
    asked: int = 0
    most_levels: int = MOST_LEVELS

    def _levels(self, required: int) -> SampleLevels:
        return sample_levels(self.entries, required, self.least.tolist(), self.most_levels)

    def _program(self, levels: SampleLevels) -> SampleProgram:
        return SampleProgram(levels, self.rows[-MOST_ROWS:], self.refused)

    def _answer(self, minima: Rates, *, by_cost: bool) -> MinimaAnswer:
        self.asked += 1
        if self.pricing is not None:
            self.rows.append(self.pricing.row_at(minima, self.deadline, by_cost=by_cost))
        return self.ask(minima, partial_deadline(self.deadline, ASK_SHARE))

    def _by_rank(self) -> Numbers:
        """The samples by their largest rank among a model's entries: the first ones are usual for every model."""
        ranks = self.entries.argsort(axis=0).argsort(axis=0).max(axis=1)
        return np.argsort(ranks, kind="stable")

    def _minima_of(self, samples: Numbers) -> Rates:
        minima: Rates = np.maximum(self.entries[samples].max(axis=0, initial=0.0), self.least)
        return minima

    def _is_refused(self, minima: Rates) -> bool:
        return any(bool((minima >= point).all()) for point in self.refused)

    def _seconds(self, share: float) -> float:
        return share * max(0.0, self.deadline - time.perf_counter())

    def _is_late(self) -> bool:
        return time.perf_counter() > self.deadline


@dataclass
class LeastCostSearch(SampleSearch):
    """The cheapest plan that holds `required` samples. `step`: all costs are multiples of it; 0: none is known.
    `dearest`: what the whole fleet costs.

    No plan costs less than `bound`; infinite: none exists.
    """

    required: int = 0
    step: float = 0.0
    dearest: float = math.inf
    bound: float = 0.0
    refused_bound: float = math.inf
    """The least bound of the cost of refused points."""

    def run(self) -> None:
        """Search until proven, or until the deadline."""
        levels = self._levels(self.required)
        self._try(np.maximum(self._minima_of(self._by_rank()[: self.required]), levels.base))
        while not self._is_late():
            below = self.dearest if self.best is None else self._next_below(self.best.cost or 0.0)
            point = None
            if below >= 0:
                point = self._program(levels).least_cost(
                    self._seconds(PROGRAM_SHARE), below, self.step or TOLERANCE * below
                )
            if point is None or point.status == "infeasible":
                self.bound = self.refused_bound
                break
            if math.isfinite(point.bound):
                self.bound = max(self.bound, min(self.refused_bound, self._round_up(point.bound)))
            if point.classes is None:
                break
            minima = levels.minima_of(point.classes)
            if self._is_refused(minima):
                # The program takes another point for this one: smaller buckets tell them apart.
                self.most_levels *= FINER
                levels = self._levels(self.required)
            else:
                self._try(minima)
        self.bound = min(self.bound, self.refused_bound)

    def _try(self, minima: Rates) -> None:
        answer = self._answer(minima, by_cost=True)
        if answer.cost is not None and (self.best is None or answer.cost < (self.best.cost or 0.0)):
            self.best = answer
        self.refused.append(minima)
        self.refused_bound = min(self.refused_bound, answer.bound)

    def _round_up(self, cost: float) -> float:
        return self.step * math.ceil(cost / self.step * (1 - 1e-9) - TOLERANCE) if self.step else cost

    def _next_below(self, cost: float) -> float:
        """The dearest plan that would be cheaper."""
        return cost - (self.step or TOLERANCE * cost) * (1 - TOLERANCE)


@dataclass
class LargestShareSearch(SampleSearch):
    """The plan that holds most samples: `held` of them. No plan holds more than `bound`."""

    held: int = -1
    bound: int = 0
    unsettled: int = -1
    """The most samples that a point could hold of which the planner said neither yes nor no."""

    def run(self) -> None:
        """Search until proven, or until the deadline."""
        self.bound = len(self.entries)
        self._bracket()
        part, levels = 0, None
        while self.held < self.bound and not self._is_late():
            if levels is None or levels.required <= self.held:
                levels = self._levels(self.held + 1)
            point = self._program(levels).most_samples(self._seconds(PROGRAM_SHARE), FLEET_PARTS[part])
            if part == 0:
                self._take_bound(point)
            if point.classes is None:
                if part == 0:
                    break
                part = 0
                continue
            minima = levels.minima_of(point.classes)
            if self._is_refused(minima):
                self.most_levels *= FINER
                levels, part = None, 0
            else:
                part = 0 if self._try(minima) else (part + 1) % len(FLEET_PARTS)

    def _take_bound(self, point: SamplePoint) -> None:
        if point.status == "infeasible":
            self.bound = max(self.held, self.unsettled)
        elif math.isfinite(point.bound):
            self.bound = min(self.bound, max(self.held, self.unsettled, math.floor(point.bound)))

    def _bracket(self) -> None:
        """Plans for the samples of least largest rank: as many as the fleet holds of them, by halving."""
        order = self._by_rank()
        low, high = -1, len(order)
        trial = high
        while low < high and not self._is_late():
            if self._try(self._minima_of(order[:trial])):
                low = max(trial, self.held)
            else:
                high = trial - 1
            if low >= 0 and high - low <= FIRST_BRACKET * len(order):
                break
            trial = (max(low, 0) + high + 1) // 2

    def _try(self, minima: Rates) -> bool:
        """Whether the planner meets these minima."""
        answer = self._answer(minima, by_cost=False)
        if answer.rates is None:
            self.refused.append(minima)
            if math.isfinite(answer.bound):
                self.unsettled = max(self.unsettled, self.bound)
            return False
        count = int((self.entries <= answer.rates * (1 + TOLERANCE)).all(axis=1).sum())
        if count > self.held:
            self.best, self.held = answer, count
        return True
