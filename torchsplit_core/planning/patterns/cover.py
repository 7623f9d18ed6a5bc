"""Cheapest ways to reach a throughput with whole slices: an integer covering knapsack, enumerated.

Under prices π the least cost of a request/s is λ = min π_i / rate_i. A cover x with
Σ rate·x ≥ demand costs λ·demand + Σ (π_i − λ·rate_i)·x_i + λ·overshoot: the two last terms are its
waste. Every cover whose waste is at most a given amount is found, item by item; as bulk goes
the item that wastes nothing, whose count follows from the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.patterns.supply import Counts, Vector

MET = 1e-9
"""Relative slack with which a demand counts as met: sums of decimal figures that meet it exactly."""

MOST_PARTIAL = 60_000
"""Partial covers held at once; where there would be more, the waste allowed is halved."""

MOST_HALVINGS = 12
"""Halvings of the waste before the enumeration settles for a few slices of each profile."""

FEW = 3


@dataclass(frozen=True)
class Covers:
    """Minimal covers, cheapest first: `counts[i]` slices by pool at `costs[i]`.

    Every minimal cover that costs at most `complete` is among them, so the cheapest of all
    costs min(costs[0], complete) at least.
    """

    costs: Vector
    counts: Counts
    complete: float

    @property
    def least(self) -> float:
        """A lower bound of the cost of any cover; its exact cost where one was found."""
        return min(float(self.costs[0]), self.complete) if len(self.costs) else self.complete


def covers(rates: Vector, prices: Vector, demand: float, most: Counts, waste: float | None = None) -> Covers:
    """Minimal covers of `demand` (requests/s) within `waste` of the linear cost, None: of the cheapest.

    rates: requests/s of one slice by pool, 0 where the model cannot use it; prices: above 0;
    most: slices of each pool in the fleet.
    """
    width = len(rates)
    if demand <= 0:
        return Covers(np.zeros(1), np.zeros((1, width), dtype=np.int64), float("inf"))
    items = np.flatnonzero(rates > 0)
    if not len(items):
        return Covers(np.zeros(0), np.zeros((0, width), dtype=np.int64), float("inf"))
    need = demand * (1 - MET)
    rate, price = rates[items], prices[items]
    per_unit = price / rate
    bulk = int(np.argmin(per_unit))
    unit = float(per_unit[bulk])
    extra = np.maximum(price - unit * rate, 0.0)
    simple = unit * (np.ceil(need / rate[bulk]) * rate[bulk] - need)
    allowed = simple if waste is None else waste
    allowed = float(allowed) * (1 + 1e-9) + 1e-12
    order = [int(i) for i in np.argsort(-extra, kind="stable") if i != bulk]
    found = _partial(rate, extra, order, need, allowed)
    halvings = 0
    while found is None and halvings < MOST_HALVINGS:
        allowed, halvings = allowed / 2, halvings + 1
        found = _partial(rate, extra, order, need, allowed)
    complete = unit * need + allowed
    if found is None:
        # Too many profiles are equally good at these prices: a few of each, and the linear cost as bound.
        found = _partial(rate, extra, order, need, float(simple), FEW)
        allowed, complete = float(simple) * (1 + 1e-9), unit * need
    assert found is not None
    wasted, reached, counts = found
    left = np.maximum(need - reached, 0.0)
    counts[:, bulk] = np.ceil(left / rate[bulk] - 1e-12).astype(np.int64)
    total = reached + counts[:, bulk] * rate[bulk]
    wasted = wasted + unit * (total - need)
    smallest = np.where(counts > 0, rate, np.inf).min(axis=1)
    keep = (wasted <= allowed) & (total - smallest < need) & (counts <= most[items]).all(axis=1)
    wasted, counts = wasted[keep], counts[keep]
    rank = np.argsort(wasted, kind="stable")
    full = np.zeros((len(rank), width), dtype=np.int64)
    full[:, items] = counts[rank]
    return Covers(unit * need + wasted[rank], full, complete)


def _partial(
    rate: Vector, extra: Vector, order: list[int], need: float, allowed: float, each_most: int | None = None
) -> tuple[Vector, Vector, Counts] | None:
    """Every choice of counts but the bulk's within the waste; None where there are too many."""
    wasted, reached = np.zeros(1), np.zeros(1)
    counts = np.zeros((1, len(rate)), dtype=np.int64)
    for item in order:
        top = np.ceil(np.maximum(need - reached, 0.0) / rate[item])
        if extra[item] > 0:
            top = np.minimum(top, np.floor((allowed - wasted) / extra[item] + 1e-9))
        if each_most is not None:
            # Few of each, and of the covers so far those that waste least.
            rank = np.argsort(wasted, kind="stable")[: MOST_PARTIAL // (each_most + 1)]
            wasted, reached, counts, top = wasted[rank], reached[rank], counts[rank], top[rank]
            top = np.minimum(top, each_most)
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
    return wasted, reached, counts
