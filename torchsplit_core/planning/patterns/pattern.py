"""Patterns: whole sets of slices that give one model a throughput, cheapest first at given prices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from torchsplit_core.planning.patterns.cover import Covers, covers
from torchsplit_core.planning.patterns.options import Option, Options
from torchsplit_core.planning.patterns.supply import Counts, Vector

MOST_JOINED = 20_000
"""Combinations of stage covers held at once; beyond it only the cheapest are joined."""


@dataclass(frozen=True)
class Pattern:
    """Slices by pool for every stage of an option. `rate` is the throughput of the model, requests/s."""

    option: int
    stages: Counts
    usage: Counts
    rate: float


@dataclass(frozen=True)
class Offers:
    """Patterns of one model with their costs, cheapest first; all that cost at most `complete` are there."""

    costs: Vector
    patterns: tuple[Pattern, ...]
    complete: float

    @property
    def least(self) -> float:
        """A lower bound of the cost of any pattern of this demand."""
        return min(float(self.costs[0]), self.complete) if self.patterns else self.complete


def offers(
    options: Options,
    prices: Vector,
    demand: float,
    most: Counts,
    *,
    within: float | None = None,
    keep: int,
) -> Offers:
    """Up to `keep` cheapest patterns that reach `demand`; all up to cost `within` where that is given.

    `complete` tells how far the list is complete: below `within` where the enumeration or
    `keep` cut it short.
    """
    width = len(prices)
    if demand <= 0:
        nothing = Pattern(-1, np.zeros((0, width), dtype=np.int64), np.zeros(width, dtype=np.int64), 0.0)
        return Offers(np.zeros(1), (nothing,), float("inf"))
    linear = options.unit_costs(prices) * demand
    complete = float("inf")
    found: list[tuple[float, int, Counts]] = []
    limit = within
    for number in np.argsort(linear, kind="stable").tolist():
        if limit is not None and linear[number] > limit:
            complete = min(complete, float(linear[number]))
            break
        waste = None if limit is None else limit - float(linear[number])
        joined = _join(
            [covers(stage.rates, prices, demand, most, waste) for stage in options.all[number].stages]
        )
        complete = min(complete, joined[2])
        found += [(cost, number, stages) for cost, stages in zip(*joined[:2], strict=True)]
        if within is None and len(joined[0]):
            # A first pattern is known: other options matter only where they can beat it.
            limit = float(joined[0][0]) if limit is None else min(limit, float(joined[0][0]))
    found.sort(key=lambda item: item[0])
    if len(found) > keep:
        complete = min(complete, found[keep][0])
        found = found[:keep]
    patterns = tuple(pattern_of(options.all[number], number, stages) for _, number, stages in found)
    return Offers(np.array([cost for cost, _, _ in found]), patterns, complete)


def pattern_of(option: Option, number: int, stages: Counts) -> Pattern:
    """The pattern of an option (with its number) that has these slices by stage and pool."""
    rate = min(float(offer.rates @ stage) for offer, stage in zip(option.stages, stages, strict=True))
    return Pattern(number, stages, stages.sum(axis=0), rate)


def _join(parts: list[Covers]) -> tuple[Vector, Counts, float]:
    """Costs, counts by (cover, stage, pool) and completeness of the covers of all stages together."""
    if len(parts) == 1:
        (only,) = parts
        return only.costs, only.counts[:, None, :], only.complete
    if any(not len(part.costs) for part in parts):
        width = parts[0].counts.shape[1]
        return np.zeros(0), np.zeros((0, len(parts), width), dtype=np.int64), sum(p.least for p in parts)
    least = sum(part.least for part in parts)
    complete = min(part.complete - part.least + least for part in parts)

    def pair(left: tuple[Vector, Counts], right: Covers) -> tuple[Vector, Counts]:
        nonlocal complete
        costs = (left[0][:, None] + right.costs[None, :]).ravel()
        rank = np.argsort(costs, kind="stable")
        if len(rank) > MOST_JOINED:
            complete = min(complete, float(costs[rank[MOST_JOINED]]))
            rank = rank[:MOST_JOINED]
        first, second = np.divmod(rank, len(right.costs))
        return costs[rank], np.concatenate([left[1][first], right.counts[second][:, None, :]], axis=1)

    start = (parts[0].costs, parts[0].counts[:, None, :])
    costs, counts = reduce(pair, parts[1:], start)
    return costs, counts, complete
