"""Cheapest ways to reach a throughput with whole slices: an integer covering knapsack, enumerated.

Slices that cost least per request/s, all of them, then the next, make the cheapest divisible cover; the bulk is the
item that completes it, at λ = π / rate. A cover x with Σ rate·x ≥ demand costs as much as that, Σ |π_i − λ·rate_i|·s_i
and λ·overshoot; s_i is what it takes of an item dearer than the bulk, or leaves of a cheaper one. The last two terms
are its waste. Every cover within a given waste is enumerated, item by item; the count of the bulk follows from the
rest. Where they are too many the cheapest ones by their residues take their place (residue_covers.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.capacity import Counts, Vector
from torchsplit_core.planning.patterns.covers.residue_covers import CoverSteps

DEMAND_SLACK = 1e-9
"""Relative slack with which a demand counts as met, for sums of decimals that meet it exactly."""

MOST_PARTIAL, MOST_FOR_CHEAPEST = 60_000, 6_000
"""Partial covers held at once, of all covers and of the cheapest one; above, the allowed waste is halved."""

MOST_HALVINGS = 12
"""Halvings of the waste of all covers before residues take the place of the enumeration."""

FROM_RESIDUES = 40
"""Covers that are taken from residues."""

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
    waste -= knapsack.linear_cost - float((prices[items] / rates[items]).min()) * need
    if waste < 0:
        return CoverSet(np.zeros(0), np.zeros((0, width), dtype=np.int64), knapsack.linear_cost)
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
    """The available slices for one demand.

    A cover is counted in steps from all slices of the items cheaper than the bulk: each step leaves one of those, or
    adds one of the dearer items.
    """

    def __init__(self, rate: Vector, price: Vector, most: Counts, need: float) -> None:
        per_unit = price / rate
        self.rate, self.price, self.most, self.need = rate, price, most, need
        rank = np.argsort(per_unit, kind="stable")
        reached = np.cumsum((rate * most)[rank])
        full = int(np.searchsorted(reached, need))
        self.bulk = int(rank[min(full, len(rank) - 1)])
        self.start = np.zeros(len(rate), dtype=np.int64)
        self.start[rank[:full]] = most[rank[:full]]
        self.start[self.bulk] = 0
        self.step: Counts = np.where(self.start > 0, -1, 1).astype(np.int64)
        self.left = need - float(rate @ self.start)
        self.unit_price = float(per_unit[self.bulk])
        self.linear_cost = float(price @ self.start) + self.unit_price * self.left
        self.extra_price = np.maximum((price - self.unit_price * rate) * self.step, 0.0)
        # What is left is settled before what is added, of which no more is needed than then lacks.
        order = np.lexsort((-self.extra_price, self.step))
        self.order = [int(i) for i in order if i != self.bulk]
        bulk_rate = rate[self.bulk]
        self.bulk_waste = float(self.unit_price * (np.ceil(self.left / bulk_rate) * bulk_rate - self.left))

    def enumerate_covers(
        self, waste: float, items: Counts, width: int, *, cheapest_only: bool = False
    ) -> CoverSet:
        """Every minimal cover within the waste, or within as much of it as can be enumerated.

        `cheapest_only`: the cheapest cover and some others.
        """
        allowed = waste * (1 + 1e-9) + 1e-12
        partial = self._partial_covers(allowed, cheapest_only=cheapest_only)
        for _ in range(0 if cheapest_only else MOST_HALVINGS):
            if partial is not None:
                break
            allowed /= 2
            partial = self._partial_covers(allowed, cheapest_only=False)
        if partial is None:
            return self._covers_by_residues(items, width)
        wasted, reached, steps = partial
        lacking, rate = np.maximum(self.left - reached, 0.0), self.rate[self.bulk]
        steps[:, self.bulk] = np.ceil(lacking / rate - 1e-12).astype(np.int64)
        wasted = wasted + self.unit_price * (reached + steps[:, self.bulk] * rate - self.left)
        counts = self.start + self.step * steps
        chosen = (wasted <= allowed) & self._is_cover(counts)
        return self._sorted(counts[chosen], items, width, self.linear_cost + allowed)

    def _covers_by_residues(self, items: Counts, width: int) -> CoverSet:
        """Some cheap covers, where too many profiles are about equally good at these prices."""
        steps = CoverSteps(
            self.step * self.rate, self.extra_price, self.most, self.bulk, self.unit_price, self.left
        )
        counts = self.start + self.step * steps.cheap_covers(FROM_RESIDUES)
        complete = self.linear_cost + steps.least_waste()
        return self._sorted(counts[self._is_cover(counts)], items, width, complete)

    def _is_cover(self, counts: Counts) -> NDArray[np.bool_]:
        """Whether these are covers of available slices that need each of them."""
        total = counts @ self.rate
        smallest = np.where(counts > 0, self.rate, np.inf).min(axis=1)
        needed = (total >= self.need * (1 - DEMAND_SLACK)) & (total - smallest < self.need)
        covers: NDArray[np.bool_] = needed & np.all((counts >= 0) & (counts <= self.most), axis=1)
        return covers

    def _sorted(self, counts: Counts, items: Counts, width: int, complete: float) -> CoverSet:
        """These covers, cheapest first, by pool."""
        costs = counts @ self.price
        rank = np.argsort(costs, kind="stable")
        full = np.zeros((len(rank), width), dtype=np.int64)
        full[:, items] = counts[rank]
        return CoverSet(costs[rank], full, complete)

    def _partial_covers(self, allowed: float, *, cheapest_only: bool) -> tuple[Vector, Vector, Counts] | None:
        """Waste, requests/s and steps of every choice without the bulk, within the waste; None if there are too many.

        `cheapest_only` drops dominated choices (in cost and throughput).
        """
        rate, extra = self.step * self.rate, self.extra_price
        wasted, reached = np.zeros(1), np.zeros(1)
        counts = np.zeros((1, len(rate)), dtype=np.int64)
        for item in self.order:
            if extra[item] > allowed:
                continue
            top = np.full(len(wasted), float(self.most[item]))
            if rate[item] > 0:
                top = np.minimum(np.ceil(np.maximum(self.left - reached, 0.0) / rate[item]), top)
            if extra[item] > 0:
                top = np.minimum(top, np.floor((allowed - wasted) / extra[item] + 1e-9))
            each = top.astype(np.int64) + 1
            size = int(each.sum())
            if size > (MOST_FOR_CHEAPEST if cheapest_only else MOST_PARTIAL):
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
