"""Cheapest ways to reach a throughput with whole slices: an integer covering knapsack, enumerated.

At prices π the least cost of a request/s is λ = min π_i / rate_i. A cover x with Σ rate·x ≥ demand costs λ·demand + Σ
(π_i − λ·rate_i)·x_i + λ·overshoot; the last two terms are its waste. Every cover within a given waste is enumerated,
item by item; the bulk item is one without waste per slice, whose count follows from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, Vector

DEMAND_SLACK = 1e-9
"""Relative slack with which a demand counts as met, for sums of decimals that meet it exactly."""

MOST_PARTIAL = 60_000
"""Partial covers held at once; above, the allowed waste is halved."""

MOST_HALVINGS = 12
"""Halvings of the waste before the enumeration is limited to a few slices of each profile."""

FALLBACK_COUNT = 3

DOMINANCE_THRESHOLD = 64
"""Number of partial covers from which on dominated ones are removed."""

FIRST_WASTE_SHARE = 16
"""The search of the cheapest cover begins with this part of the waste of the bulk alone."""


@dataclass(frozen=True)
class CoverSet:
    """Minimal covers, cheapest first: `counts[i]` slices by pool at `costs[i]`.

    Every minimal cover that costs at most `complete` is included, so min(costs[0], complete) bounds the cheapest.
    """

    costs: Vector
    counts: Counts
    complete_below: float

    @property
    def least(self) -> float:
        """A lower bound of the cost of any cover; exact if a cover was found."""
        return min(float(self.costs[0]), self.complete_below) if len(self.costs) else self.complete_below


def enumerate_minimal_covers(
    rates: Vector,
    prices: Vector,
    demand: float,
    most: Counts,
    waste: float = float("inf"),
    *,
    cheapest_only: bool = False,
) -> CoverSet:
    """Minimal covers of `demand` (requests/s) within `waste` of the linear cost.

    rates: requests/s of one slice by pool, 0 if the model cannot use it; prices: above 0; most: slices of each pool in
    the fleet. `cheapest_only`: the cheapest cover and some others.
    """
    width = len(rates)
    if demand <= 0:
        return CoverSet(np.zeros(1), np.zeros((1, width), dtype=np.int64), float("inf"))
    items = np.flatnonzero((rates > 0) & (most > 0))
    need = demand * (1 - DEMAND_SLACK)
    if not len(items) or float(rates[items] @ most[items]) < need:
        return CoverSet(np.zeros(0), np.zeros((0, width), dtype=np.int64), float("inf"))
    knapsack = CoveringKnapsack(rates[items], prices[items], most[items], need)
    if not cheapest_only:
        return knapsack.enumerate_covers(waste, items, width)
    # The first waste with any cover proves its cheapest; small wastes are quick to try.
    allowed = min(waste, knapsack.bulk_waste / FIRST_WASTE_SHARE)
    while True:
        cover_set = knapsack.enumerate_covers(allowed, items, width, cheapest_only=True)
        if (
            len(cover_set.costs)
            or cover_set.complete_below < knapsack.linear_cost + allowed
            or allowed >= waste
        ):
            return cover_set
        allowed = min(waste, max(8 * allowed, float(knapsack.price.min()) / FIRST_WASTE_SHARE))


class CoveringKnapsack:
    """The available slices for one demand."""

    def __init__(self, rate: Vector, price: Vector, most: Counts, need: float) -> None:
        per_unit = price / rate
        self.rate, self.price, self.most, self.need = rate, price, most, need
        self.cheapest = int(np.argmin(per_unit))
        self.unit_price = float(per_unit[self.cheapest])
        self.linear_cost = self.unit_price * need
        self.extra_price = np.maximum(price - self.unit_price * rate, 0.0)
        self.order = [int(i) for i in np.argsort(-self.extra_price, kind="stable") if i != self.cheapest]
        bulk = rate[self.cheapest]
        self.bulk_waste = float(self.unit_price * (np.ceil(need / bulk) * bulk - need))

    def enumerate_covers(
        self, waste: float, items: Counts, width: int, *, cheapest_only: bool = False
    ) -> CoverSet:
        """Every minimal cover within the waste, or within as much of it as can be enumerated.

        `cheapest_only`: the cheapest cover and some others.
        """
        allowed = waste * (1 + 1e-9) + 1e-12
        partial = self._partial_covers(allowed, cheapest_only=cheapest_only)
        halvings = 0
        while partial is None and halvings < MOST_HALVINGS:
            allowed, halvings = allowed / 2, halvings + 1
            partial = self._partial_covers(allowed, cheapest_only=cheapest_only)
        complete = self.linear_cost + allowed
        if partial is None:
            # Too many profiles are equally good at these prices: a few of each, with the linear cost as bound.
            allowed, complete = max(waste, self.bulk_waste) * (1 + 1e-9), self.linear_cost
            partial = self._partial_covers(allowed, cheapest_only=cheapest_only, each_most=FALLBACK_COUNT)
        assert partial is not None
        wasted, reached, counts = partial
        bulk, rate = self.cheapest, self.rate
        left = np.maximum(self.need - reached, 0.0)
        counts[:, bulk] = np.ceil(left / rate[bulk] - 1e-12).astype(np.int64)
        total = reached + counts[:, bulk] * rate[bulk]
        wasted = wasted + self.unit_price * (total - self.need)
        smallest = np.where(counts > 0, rate, np.inf).min(axis=1)
        minimal = total - smallest < self.need
        keep = (wasted <= allowed) & minimal & (counts <= self.most).all(axis=1)
        wasted, counts = wasted[keep], counts[keep]
        rank = np.argsort(wasted, kind="stable")
        full = np.zeros((len(rank), width), dtype=np.int64)
        full[:, items] = counts[rank]
        return CoverSet(self.linear_cost + wasted[rank], full, complete)

    def _partial_covers(
        self, allowed: float, *, cheapest_only: bool = False, each_most: int | None = None
    ) -> tuple[Vector, Vector, Counts] | None:
        """Every choice of counts, but the bulk's, within the waste; None if there are too many.

        `cheapest_only` drops dominated choices (in cost and throughput). `each_most`: at most so many of each profile,
        and of the choices those with the least waste.
        """
        rate, extra = self.rate, self.extra_price
        wasted, reached = np.zeros(1), np.zeros(1)
        counts = np.zeros((1, len(rate)), dtype=np.int64)
        for item in self.order:
            if extra[item] > allowed:
                continue
            top = np.minimum(np.ceil(np.maximum(self.need - reached, 0.0) / rate[item]), self.most[item])
            if extra[item] > 0:
                top = np.minimum(top, np.floor((allowed - wasted) / extra[item] + 1e-9))
            if each_most is not None:
                rank = np.argsort(wasted, kind="stable")[: MOST_PARTIAL // (each_most + 1)]
                wasted, reached, counts = wasted[rank], reached[rank], counts[rank]
                top = np.minimum(top[rank], each_most)
            each = top.astype(np.int64) + 1
            size = int(each.sum())
            if size > MOST_PARTIAL:
                return None
            source = np.repeat(np.arange(len(each)), each)
            number = np.arange(size) - np.repeat(np.cumsum(each) - each, each)
            wasted = wasted[source] + number * extra[item]
            reached = reached[source] + number * rate[item]
            counts = counts[source]
            counts[:, item] = number
            if cheapest_only and size > DOMINANCE_THRESHOLD:
                cost = self.unit_price * reached + wasted
                rank = np.lexsort((cost, -reached))
                before = np.minimum.accumulate(cost[rank])
                rank = rank[np.concatenate([[True], cost[rank][1:] < before[:-1]])]
                wasted, reached, counts = wasted[rank], reached[rank], counts[rank]
        return wasted, reached, counts
