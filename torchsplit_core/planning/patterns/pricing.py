"""Patterns: whole sets of slices that give one model a throughput, cheapest first at given prices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, Vector
from torchsplit_core.planning.patterns.covers.knapsack_cover import CoverSet, enumerate_minimal_covers
from torchsplit_core.planning.patterns.options import ModelOption, ModelOptions, StageOption

ROUNDING = 1e-9
"""Relative part of a cost beyond which covers are enumerated, so that rounding leaves none of it out."""


@dataclass(frozen=True)
class Pattern:
    """Slices by pool for every stage of an option. `rate` is the throughput of the model, requests/s."""

    option: int
    stages: Counts
    usage: Counts
    rate: float


@dataclass(frozen=True)
class PricedPatterns:
    """Patterns of one model with their costs, cheapest first; all that cost less than `complete` are included.

    `cut`: some were left out because there are too many, so even at `complete` some are missing.
    """

    costs: Vector
    patterns: tuple[Pattern, ...]
    complete_below: float
    truncated: bool = False

    @property
    def least(self) -> float:
        """A lower bound of the cost of any pattern of this demand."""
        return min(float(self.costs[0]), self.complete_below) if self.patterns else self.complete_below


def price_patterns(
    options: ModelOptions,
    prices: Vector,
    demand: float,
    most: Counts,
    *,
    max_cost: float | None = None,
    keep: int,
) -> PricedPatterns:
    """Up to `keep` cheapest patterns that reach `demand`; all up to cost `max_cost` if given.

    `complete` is below `max_cost` if the enumeration or `keep` left patterns out.
    """
    width = len(prices)
    if demand <= 0:
        nothing = Pattern(-1, np.zeros((0, width), dtype=np.int64), np.zeros(width, dtype=np.int64), 0.0)
        return PricedPatterns(np.zeros(1), (nothing,), float("inf"))
    linear = options.unit_costs(prices) * demand
    complete, cut = float("inf"), False
    priced: list[tuple[float, int, Counts]] = []
    limit = float("inf") if max_cost is None else max_cost
    for number in np.argsort(linear, kind="stable").tolist():
        if linear[number] > limit:
            complete = min(complete, float(linear[number]))
            break
        waste = limit - float(linear[number])
        parts = [
            _stage_covers(stage, prices, demand, most, waste, cheapest_only=max_cost is None)
            for stage in options.options[number].stages
        ]
        costs, counts, known, short = _join_stages(parts, 2 * keep)
        complete, cut = min(complete, known), cut or short
        priced += [(float(cost), number, stages) for cost, stages in zip(costs, counts, strict=True)]
        if max_cost is None and len(costs):
            # With a first pattern known, other options matter only if they can beat it.
            limit = min(limit, float(costs[0]))
    priced.sort(key=lambda item: item[0])
    if len(priced) > keep:
        complete, cut = min(complete, priced[keep][0]), True
        priced = priced[:keep]
    patterns = tuple(build_pattern(options.options[number], number, stages) for _, number, stages in priced)
    return PricedPatterns(np.array([cost for cost, _, _ in priced]), patterns, complete, cut)


def _stage_covers(
    stage: StageOption, prices: Vector, demand: float, most: Counts, waste: float, *, cheapest_only: bool
) -> CoverSet:
    """The minimal covers of a stage that also keep its least after the loss of a slice.

    Those whose highest rate is ρ are the covers of the least and ρ. `waste` is beyond the linear cost of `demand`.
    """
    least = stage.least_after_loss_rps
    if least <= 0:
        return enumerate_minimal_covers(stage.rates, prices, demand, most, waste, cheapest_only=cheapest_only)
    highest = np.unique(stage.rates[(stage.rates > 0) & (most > 0)])
    # Up to these the demand leaves enough anyway; the highest of them allows all that the others do.
    enough = int((highest + least <= demand).sum())
    highest = highest[max(enough - 1, 0) :]
    needs = np.maximum(highest + least, demand)
    with np.errstate(divide="ignore"):
        unit_prices = prices / stage.rates
    linear = np.array([unit_prices[stage.rates <= rate].min() for rate in highest]) * needs
    within = float(unit_prices.min()) * demand + waste
    costs, counts, complete = [np.zeros(0)], [np.zeros((0, len(prices)), dtype=np.int64)], float("inf")
    for number in np.argsort(linear, kind="stable").tolist():
        if linear[number] > within:
            complete = min(complete, float(linear[number]))
            break
        rates = np.where(stage.rates <= highest[number], stage.rates, 0.0)
        room = within - float(linear[number]) + ROUNDING * within if within < float("inf") else within
        cover_set = enumerate_minimal_covers(
            rates, prices, float(needs[number]), most, room, cheapest_only=cheapest_only
        )
        complete = min(complete, cover_set.complete_below)
        chosen = np.arange(len(cover_set.costs))
        if number or not enough:
            # A cover without a slice of this rate belongs to a lower one, where it may be more than is needed.
            chosen = np.flatnonzero(cover_set.counts[:, rates == highest[number]].any(axis=1))
        costs.append(cover_set.costs[chosen])
        counts.append(cover_set.counts[chosen])
        if cheapest_only and len(costs[-1]):
            within = min(within, float(costs[-1][0]))
    joined = np.concatenate(costs)
    rank = np.argsort(joined, kind="stable")
    return CoverSet(joined[rank], np.concatenate(counts)[rank], complete)


def build_pattern(option: ModelOption, number: int, stages: Counts) -> Pattern:
    """The pattern of an option (with its index) that has these slices by stage and pool."""
    rate = min(float(offer.rates @ stage) for offer, stage in zip(option.stages, stages, strict=True))
    return Pattern(number, stages, stages.sum(axis=0), rate)


def _join_stages(parts: list[CoverSet], keep: int) -> tuple[Vector, Counts, float, bool]:
    """Costs, counts by (cover, stage, pool) and completeness of the cheapest joint covers of all stages.

    Also whether some were left out because there are too many.
    """
    least = sum(part.least for part in parts)
    complete = min(part.complete_below - part.least for part in parts) + least
    costs, counts = parts[0].costs, parts[0].counts[:, None, :]
    cut = False
    for part in parts[1:]:
        # Both are sorted: the `keep` cheapest sums are among the `keep` cheapest of either.
        cut = cut or max(len(costs), len(part.costs)) > keep
        costs, complete = _cheapest_costs(costs, keep, complete, least)
        right, complete = _cheapest_costs(part.costs, keep, complete, least)
        joined = (costs[:, None] + right[None, :]).ravel()
        rank = np.argsort(joined, kind="stable")
        first, second = np.divmod(rank, max(len(right), 1))
        counts = np.concatenate([counts[first], part.counts[second][:, None, :]], axis=1)
        costs = joined[rank]
    if len(costs) > keep:
        complete, cut = min(complete, float(costs[keep])), True
        costs, counts = costs[:keep], counts[:keep]
    return costs, counts, complete, cut


def _cheapest_costs(costs: Vector, keep: int, complete: float, least: float) -> tuple[Vector, float]:
    """The `keep` cheapest, and the cost up to which sums with the others' cheapest stay complete."""
    if len(costs) <= keep:
        return costs, complete
    return costs[:keep], min(complete, float(costs[keep] - costs[0]) + least)
