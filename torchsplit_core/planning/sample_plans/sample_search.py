"""Which samples to hold: levels from a program of price bounds, tried by the planner one point after the other.

The program's rows of prices hold for every plan, so its value bounds all of them; the planner says whether the minima
of its solution can be met, and at what cost. Minima that it refuses rule out every point above them. So the search ends
with a proof: no level is left that could be better.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.planning.sample_plans.price_rows import PriceRow, Pricing
from torchsplit_core.planning.sample_plans.questions import Ask, MinimaAnswer
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

PROGRAM_SHARE, ASK_SHARE, FIRST_ASK_SHARE = 0.4, 0.4, 0.1
"""Parts of the remaining time for one program, and for one question to the planner; the first one only asks for a plan
to improve on."""

LEAST_PROGRAM_S = 5.0
"""Seconds that a program may take of what is left, if that is more."""

MOST_ASK_S = 3.0
"""Most seconds of a question whether minima can be met at all: to prove the fewest GPUs would take longer."""

MOST_ROWS = 16
"""Rows of prices in a program: of more the last ones."""

COARSE_GAP, FINE_GAP, GAP_PART = 8e-3, 1e-4, 0.25
"""Relative gap to which a program is solved at first, that of the solver itself, and in between the part of the gap
left: its last 0.3 % take most of the time."""

FINER = 4
"""Times the levels of a program that could not tell refused points from others."""

FIRST_SPARE, LEAST_SPARE, MOST_SPARE = 0.04, 5e-4, 0.2
"""Part of the fleet's worth that a point leaves, since whole slices never use all of it: halved after a point that the
planner meets or where there is none, doubled after one that it refuses."""

BOUND_EVERY = 4
"""Every so many programs leave nothing of the fleet: their value is a bound."""

FIRST_PARTS = (0.97, 0.93, 0.85)
"""Parts of the fleet for which a first plan is sought."""

FIRST_BRACKET = 0.01
"""Part of the samples to which their number is narrowed then."""


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

    def _levels(self, required: int, *, upward: bool = False) -> SampleLevels:
        return sample_levels(self.entries, required, self.least.tolist(), self.most_levels, upward=upward)

    def _program(self, levels: SampleLevels, gap: float) -> SampleProgram:
        """The program, solved to a part of the relative `gap` that is left."""
        solved_to = min(COARSE_GAP, GAP_PART * gap)
        return SampleProgram(
            levels, self.rows[-MOST_ROWS:], self.refused, solved_to if solved_to > FINE_GAP else None
        )

    def _answer(self, minima: Rates, *, by_cost: bool) -> MinimaAnswer:
        self.asked += 1
        if self.pricing is not None:
            row = self.pricing.row_at(minima, self.deadline, by_cost=by_cost)
            self.rows.append(row)
            if math.isinf(row.fleet_part) and self.pricing.exact and not self.pricing.shares:
                # The prices prove it.
                return MinimaAnswer(math.inf)
        until = partial_deadline(self.deadline, ASK_SHARE if self.best is not None else FIRST_ASK_SHARE)
        return self.ask(minima, until if by_cost else min(until, time.perf_counter() + MOST_ASK_S), by_cost)

    def _by_rank(self) -> Numbers:
        """The samples by their largest rank among a model's entries: the first ones are usual for every model."""
        ranks = self.entries.argsort(axis=0).argsort(axis=0).max(axis=1)
        return np.argsort(ranks, kind="stable")

    def _minima_of(self, samples: Numbers) -> Rates:
        minima: Rates = np.maximum(self.entries[samples].max(axis=0, initial=0.0), self.least)
        return minima

    def _is_refused(self, minima: Rates) -> bool:
        return any(bool((minima >= point).all()) for point in self.refused)

    def _program_seconds(self) -> float:
        left = max(0.0, self.deadline - time.perf_counter())
        return max(PROGRAM_SHARE * left, min(left, LEAST_PROGRAM_S))

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
        if self.pricing is not None:
            # The first point may be out of reach, and its prices then say little of others.
            self.rows.append(self.pricing.row_at(levels.base, self.deadline, by_cost=True))
        first = np.maximum(self._minima_of(self._by_rank()[: self.required]), levels.base)
        self._try(first, settle=False)
        while not self._is_late():
            below = self.dearest if self.best is None else self._next_below(self.best.cost or 0.0)
            point = None
            if below >= 0:
                gap = 1.0 if self.best is None else (below - self.bound) / max(below, TOLERANCE)
                point = self._program(levels, gap).least_cost(
                    self._program_seconds(), below, self.step or TOLERANCE * below
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

    def _try(self, minima: Rates, *, settle: bool = True) -> None:
        """Ask for the least cost of these minima; `settle`: do not ask again even if a lower one is not ruled out."""
        answer = self._answer(minima, by_cost=True)
        if answer.cost is not None and (self.best is None or answer.cost < (self.best.cost or 0.0)):
            self.best = answer
        if settle or answer.bound >= (math.inf if self.best is None else self.best.cost or 0.0):
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
    bounded: bool = False
    """Whether a program has bounded the number: only then a point is left open."""

    def run(self) -> None:
        """Search until proven, or until the deadline."""
        self.bound = len(self.entries)
        self._begin()
        if self.held < self.bound and self.pricing is not None:
            levels = self._levels(self.held + 1)
            self._take_bound(self._program(levels, 1.0).most_in_parts(self._program_seconds()))
        spare, rounds = FIRST_SPARE, 0
        while self.held < self.bound and not self._is_late():
            # A bound cannot fall below what points left open could hold.
            bounding = self.pricing is None or (
                rounds % BOUND_EVERY == BOUND_EVERY - 1 and self.bound > self.unsettled
            )
            rounds += 1
            part = 1.0 if bounding else 1.0 - spare
            levels = self._levels(self.held + 1, upward=not bounding)
            gap = (self.bound - self.held) / len(self.entries)
            point = self._program(levels, gap).most_samples(self._program_seconds(), part)
            if bounding:
                self._take_bound(point)
            if point.classes is None:
                if bounding or point.status != "infeasible":
                    break
                spare /= 2
                if spare < LEAST_SPARE:
                    spare = FIRST_SPARE
                continue
            minima = levels.minima_of(point.classes)
            if self._is_refused(minima):
                self.most_levels *= FINER
            elif self._try(minima, settle=self.bounded):
                spare /= 2
            elif not bounding:
                spare = min(2 * spare, MOST_SPARE)

    def settle_cost(self, seconds: float) -> None:
        """Ask for the least cost of the samples that the best plan holds."""
        if self.best is None or self.best.rates is None:
            return
        samples = np.flatnonzero((self.entries <= self.best.rates * (1 + TOLERANCE)).all(axis=1))
        answer = self.ask(self._minima_of(samples), time.perf_counter() + seconds, True)
        if answer.cost is not None and answer.cost <= (self.best.cost or 0.0):
            self.best = answer

    def _take_bound(self, point: SamplePoint) -> None:
        if point.status == "infeasible":
            self.bound, self.bounded = max(self.held, self.unsettled), True
        elif math.isfinite(point.bound):
            self.bound = min(self.bound, max(self.held, self.unsettled, math.floor(point.bound)))
            self.bounded = True

    def _begin(self) -> None:
        """Plans for samples of least largest rank: all, else as many as parts of slices hold on most of the fleet."""
        order = self._by_rank()
        count = len(order)
        parts = {0: 0.0, count: self._part_of(order)}
        if parts[count] <= 1.0 and self._try(self._minima_of(order), settle=False):
            return
        for most in FIRST_PARTS:
            count = self._count_within(order, most, parts)
            if self._try(self._minima_of(order[:count]), settle=False) or self._is_late():
                return
        while count > 0 and not self._is_late():
            count //= 2
            if self._try(self._minima_of(order[:count]), settle=False):
                return

    def _part_of(self, samples: Numbers) -> float:
        """The part of the fleet that parts of slices need for these samples; NaN if it is not known."""
        if self.pricing is None:
            return math.nan
        return self.pricing.row_at(self._minima_of(samples), self.deadline, by_cost=False).fleet_part

    def _count_within(self, order: Numbers, most: float, parts: dict[int, float]) -> int:
        """How many samples, taken in this order, need at most this part of the fleet, to FIRST_BRACKET.

        `parts` are those known by number of samples.
        """
        if self.pricing is None:
            return int(most * len(order))
        while not self._is_late():
            low = max(count for count, part in parts.items() if part <= most)
            high = min((count for count, part in parts.items() if count > low), default=low)
            if high - low <= max(1, FIRST_BRACKET * len(order)):
                break
            middle = (low + high) // 2
            parts[middle] = self._part_of(order[:middle])
        return low

    def _try(self, minima: Rates, *, settle: bool = True) -> bool:
        """Whether the planner meets these minima; `settle`: if not, do not ask again even if it did not know."""
        answer = self._answer(minima, by_cost=False)
        if answer.rates is None:
            known = math.isinf(answer.bound)
            if known or settle:
                self.refused.append(minima)
            if settle and not known:
                self.unsettled = max(self.unsettled, self.bound)
            return False
        count = int((self.entries <= answer.rates * (1 + TOLERANCE)).all(axis=1).sum())
        if count > self.held:
            self.best, self.held = answer, count
        return True
