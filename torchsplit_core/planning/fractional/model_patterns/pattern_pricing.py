"""The cheapest patterns of all models at given prices, sought for all their options at once.

For each stage of an option (a *cover*) tenancies are sought that give it the rate wanted. What a share costs is linear
between *ends*, the least share and those after which it jumps, so all tenancies of a cheapest cover but the last are at
ends. Sets of ends get longer by one kind of end after the other, those of all covers together as arrays:

1. No cover costs less than its rate at the end that costs least per request/s.
2. First covers: as many of that end as fit, and the cheapest last tenancy. What no better pattern has is left out:
   options that 1 bounds above the best pattern; ends that cost more than the best end for the same rate, by more than
   the best pattern costs above its bound; and ends where another one gives no less for no more.
3. Sets of ends get any number of the next kind, in order of cost per request/s, as long as a better pattern may come of
   it, and are closed by the cheapest last tenancy. Of two sets of a cover that may get the same ends the one that lacks
   more and costs more is left out.

After MAX_LOOKED_AT sets of a cover what is open is closed as in 2 and bounded as in 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.fractional.model_patterns.patterns import (
    RESOURCES,
    SHARE_STEPS,
    STEPS,
    STEPS_AFTER,
    WHOLE,
    Box,
    Integers,
    Option,
    Pattern,
    Vector,
)
from torchsplit_core.planning.problem.build import Problem

MAX_LOOKED_AT = 20_000
"""Sets of ends of a cover that are looked at, after which a lower bound of its cost is given."""

RATIO_PLACES = np.array([0.0, 0.125, 0.25, 0.5, 1.0])
"""Between the least and the greatest cost per request/s of a cover's ends: those at which the discount is reckoned."""


class _Rows:
    """The covers, uses and ends of some options as arrays; those of an option are neighbours.

    Options are sought the best of by `owner`: their model, or each by itself. A pool without prices is added for uses
    that stand alone: what they cost does not grow with a share.
    """

    def __init__(self, numbered: Sequence[tuple[int, Option]], owners: Sequence[int], pools: int) -> None:
        self.numbers, options = [number for number, _ in numbered], [option for _, option in numbered]
        stages = [stage for option in options for stage in option.stages]
        self.owners = np.array(owners)
        self.owner_starts = np.flatnonzero(np.diff(self.owners, prepend=-1))
        covers = [len(option.stages) for option in options]
        self.option_starts = _starts(covers)
        self.cover_options = np.repeat(np.arange(len(options)), covers)
        self.cover_owners = self.owners[self.cover_options]
        self.use_counts = np.array([len(stage.choices) for stage in stages])
        self.use_starts = _starts(self.use_counts)
        self.choices = np.concatenate([stage.choices for stage in stages])
        self.use_rates = np.concatenate([stage.rates for stage in stages])
        alone = np.concatenate([stage.alone for stage in stages])
        self.use_pools = np.where(alone, pools, np.concatenate([stage.pools for stage in stages]))
        least = np.repeat([stage.least for stage in stages], self.use_counts)
        self.least_shares = np.where(alone, 1.0, least)
        self.least_steps = np.searchsorted(STEPS_AFTER, self.least_shares)
        end_counts = [len(stage.end_uses) for stage in stages]
        self.end_covers = np.repeat(np.arange(len(stages)), end_counts)
        self.end_uses = np.concatenate([stage.end_uses for stage in stages])
        self.end_uses += self.use_starts[self.end_covers]
        self.end_pools = self.use_pools[self.end_uses]
        self.end_shares = np.concatenate([stage.end_shares for stage in stages])
        self.end_steps = np.searchsorted(STEPS_AFTER, self.end_shares)
        self.end_rates = self.use_rates[self.end_uses] * self.end_shares
        # Whatever the prices, the least share and the whole slice are ends.
        last = len(STEPS) - 1
        always = (self.end_shares == self.least_shares[self.end_uses]) | (self.end_steps == last)
        self.end_jumps = np.where(always, last, self.end_steps)


class PatternPricing:
    """The options of all models, by model, to be priced."""

    def __init__(self, problem: Problem, options: Mapping[int, Sequence[Option]]) -> None:
        self.options = options
        # What a choice takes whatever its share.
        self.takes = np.zeros((len(problem.choices), RESOURCES))
        self.pools = np.zeros(len(problem.choices), dtype=np.int64)
        for stage in (stage for by_model in options.values() for item in by_model for stage in item.stages):
            self.takes[stage.choices], self.pools[stage.choices] = stage.taken, stage.pools
        self._models: tuple[list[tuple[int, tuple[int, int]]], _Rows] | None = None
        self._options: tuple[list[int], _Rows] | None = None

    def cheapest(self, box: Box, prices: Vector, rates: Mapping[int, float]) -> dict[int, Pattern]:
        """By model the cheapest pattern within a box that gives every stage its rate (requests/s).

        `prices` are pools × RESOURCES, ≥ 0.
        """
        if not rates:
            return {}
        key = [(model, box[model]) for model in rates]
        if self._models is None or self._models[0] != key:
            numbered, owners = [], []
            for place, (model, (first, end)) in enumerate(key):
                numbered += [(number, self.options[model][number]) for number in range(first, end)]
                owners += [place] * (end - first)
            self._models = key, _Rows(numbered, owners, len(prices))
        rows = self._models[1]
        by_option = np.array(list(rates.values()))[rows.owners]
        search = self._search(rows, prices, by_option, np.ones(len(rows.owners), dtype=np.bool_))
        return dict(zip(rates, map(search.pattern, range(len(rates))), strict=True))

    def by_option(self, box: Box, prices: Vector, rates: Mapping[int, float]) -> PricedOptions:
        """The same for every option of a box, and for each outside what no pattern of it costs less than."""
        if self._options is None or self._options[0] != list(rates):
            numbered = [item for model in rates for item in enumerate(self.options[model])]
            self._options = list(rates), _Rows(numbered, range(len(numbered)), len(prices))
        inside, by_option = [], []
        for model, rate in rates.items():
            options = range(len(self.options[model]))
            inside += [box[model][0] <= number < box[model][1] for number in options]
            by_option += [rate] * len(options)
        search = self._search(self._options[1], prices, np.array(by_option), np.array(inside))
        return PricedOptions(search.bounds, search.pattern)

    def _search(self, rows: _Rows, prices: Vector, rates: Vector, inside: NDArray[np.bool_]) -> _Search:
        fixed = (self.takes * prices[self.pools]).sum(axis=1)[rows.choices]
        return _Search(rows, fixed, prices, rates, inside)


@dataclass(frozen=True)
class PricedOptions:
    """By option, models one after the other, what none of its patterns costs less than, and its cheapest pattern where
    it is in the box."""

    bounds: Vector
    pattern: Callable[[int], Pattern]


@dataclass(frozen=True)
class _Sets:
    """Sets of ends of some covers, by number: the rate missing, and the cost."""

    numbers: Integers
    covers: Integers
    missing: Vector
    costs: Vector

    def where(self, which: NDArray[np.bool_] | Integers) -> _Sets:
        """Some of them."""
        return _Sets(self.numbers[which], self.covers[which], self.missing[which], self.costs[which])

    def joined(self, other: _Sets) -> _Sets:
        """These and the others."""
        return _Sets(
            np.concatenate([self.numbers, other.numbers]),
            np.concatenate([self.covers, other.covers]),
            np.concatenate([self.missing, other.missing]),
            np.concatenate([self.costs, other.costs]),
        )


class _Search:
    """The search at some prices, for rates by option; only options `inside` are searched."""

    def __init__(
        self, rows: _Rows, fixed: Vector, prices: Vector, rates: Vector, inside: NDArray[np.bool_]
    ) -> None:
        self.rows, self.fixed = rows, fixed
        self.slopes = np.append(prices[:, 0], 0.0)
        self.steps = np.vstack([prices[:, SHARE_STEPS] @ STEPS.T, np.zeros(len(STEPS))])
        self.rates: Vector = rates[rows.cover_options]
        jumps = np.diff(self.steps, axis=1, append=np.inf) > 0
        at = np.flatnonzero(jumps[rows.end_pools, rows.end_jumps])
        self.end_covers, self.end_uses = rows.end_covers[at], rows.end_uses[at]
        self.end_shares, self.end_rates = rows.end_shares[at], rows.end_rates[at]
        self.end_costs = self._costs(self.end_uses, self.end_shares, rows.end_steps[at])
        self.ratios: Vector = self.end_costs / self.end_rates
        starts = np.searchsorted(self.end_covers, np.arange(len(self.rates)))
        self.best_ratios = np.minimum.reduceat(self.ratios, starts)
        self.best_ends = _first(self.ratios == self.best_ratios[self.end_covers], self.end_covers)
        self.least: Vector = self.best_ratios * self.rates
        """By cover what none costs less than."""
        self.option_least = np.add.reduceat(self.least, rows.option_starts)
        singles = self._costs(np.arange(len(fixed)), rows.least_shares, rows.least_steps)
        self.least_single = np.minimum.reduceat(singles, rows.use_starts)
        """By cover what no tenancy costs less than."""
        self.costs: Vector = np.full(len(self.rates), np.inf)
        self.closed: dict[int, tuple[int, int, int, float]] = {}
        """By cover the best one: its set of ends, copies of the best end, and the last tenancy's use and share."""
        self.open_bounds: Vector = np.full(len(self.rates), np.inf)
        self.parents = [-1] * len(self.rates)
        self.added = [(-1, 0)] * len(self.rates)
        """By set of ends the one that it comes from, and the end added, with copies; first the covers' empty sets."""
        self._run(inside[rows.cover_options])
        self.option_costs: Vector = np.add.reduceat(self.costs, rows.option_starts)
        self.bounds = self._bounds()
        """By option what none of its patterns costs less than, if that is less than its owner's cheapest costs."""

    def _run(self, inside: NDArray[np.bool_]) -> None:
        """Find the cheapest pattern of each owner."""
        covers = np.flatnonzero(inside)
        sets = _Sets(covers, covers, self.rates[covers], np.zeros(len(covers)))
        self._close(sets, by_copies=True)
        room: Vector = np.where(inside, self._limits() - self.least, 0.0)
        wanted = room > 0
        if wanted.any():
            self._order_ends(wanted, room)
            sets = sets.where(wanted[covers])
            self._close(sets)
            self._lengthen(sets)

    def _lengthen(self, sets: _Sets) -> None:
        """Give ends to these sets, one kind after the other, as long as one may be in a better pattern."""
        looked_at = np.zeros(len(self.rates))
        for kind in range(int((self.end_ends - self.first_ends).max())):
            places = self.first_ends[sets.covers] + kind
            limits = self._limits()[sets.covers]
            promising = places < self.end_ends[sets.covers]
            # Beyond the last kind there is none.
            places = np.minimum(places, len(self.ends) - 1)
            promising &= sets.costs + self._least_rest(sets.covers, places, sets.missing) < limits
            sets, places = sets.where(promising), places[promising]
            if not len(sets.covers):
                return
            longer = self._longer(sets, places)
            self._close(longer)
            sets = sets.joined(longer)
            sets = sets.where(_undominated(sets.covers, sets.missing, sets.costs))
            looked_at += np.bincount(sets.covers, minlength=len(looked_at))
            over = (looked_at > MAX_LOOKED_AT)[sets.covers]
            if over.any():
                left = sets.where(over)
                bounds = left.costs + left.missing * self.best_ratios[left.covers]
                np.minimum.at(self.open_bounds, left.covers, bounds)
                self._close(left, by_copies=True)
                sets = sets.where(~over)

    def _longer(self, sets: _Sets, places: Integers) -> _Sets:
        """These sets with any number of one more kind of end, by place in the order."""
        ends = self.ends[places]
        most = np.maximum(np.ceil(sets.missing / self.end_rates[ends] - WHOLE) - 1, 0).astype(np.int64)
        owners, copies = _spread(np.ones_like(most), most)
        ends, covers = ends[owners], sets.covers[owners]
        rest = sets.missing[owners] - copies * self.end_rates[ends]
        costs = sets.costs[owners] + copies * self.end_costs[ends]
        # What is missing then takes one more tenancy at least.
        least = np.maximum(self._least_rest(covers, places[owners], rest), self.least_single[covers])
        promising = costs + least < self._limits()[covers]
        numbers = np.arange(len(self.parents), len(self.parents) + int(promising.sum()))
        self.parents += sets.numbers[owners[promising]].tolist()
        self.added += zip(ends[promising].tolist(), copies[promising].tolist(), strict=True)
        return _Sets(numbers, covers[promising], rest[promising], costs[promising])

    def _order_ends(self, wanted: NDArray[np.bool_], room: Vector) -> None:
        """Order the ends of these covers that may be in a better pattern by cost per request/s."""
        excess = self.end_costs - self.best_ratios[self.end_covers] * self.end_rates
        # Whatever is rounded: a cover that is wanted has an end.
        excess[self.best_ends] = 0.0
        ends = np.flatnonzero(wanted[self.end_covers] & (excess < room[self.end_covers]))
        ends = ends[_undominated(self.end_covers[ends], -self.end_rates[ends], self.end_costs[ends])]
        self.ends = ends[np.lexsort((self.ratios[ends], self.end_covers[ends]))]
        covers = np.arange(len(room))
        self.first_ends = np.searchsorted(self.end_covers[self.ends], covers)
        self.end_ends = np.searchsorted(self.end_covers[self.ends], covers, side="right")
        self.discounts = self._discounts(np.flatnonzero(wanted[self.end_covers]), np.flatnonzero(wanted))

    def _discounts(self, every: Integers, wanted: Integers) -> Vector:
        """By ordered end what the last tenancy costs less, at most, than at the ratio of that end; at most 0.

        It is at an end that costs least at the ratio, or between two that cost more: a concave function of the ratio,
        so no less than on the lines between some of its values. `every` end of the `wanted` covers.
        """
        lowest = self.best_ratios
        width = np.zeros(len(lowest))
        width[wanted] = self.ratios[self.ends[self.end_ends[wanted] - 1]] - lowest[wanted]
        covers, starts = self.end_covers[every], np.searchsorted(self.end_covers[every], wanted)
        costs, rates = self.end_costs[every], self.end_rates[every]
        values = np.zeros((len(RATIO_PLACES), len(lowest)))
        for place, value in zip(RATIO_PLACES[1:], values[1:], strict=True):
            value[wanted] = np.minimum.reduceat(costs - (lowest + place * width)[covers] * rates, starts)
        of = self.end_covers[self.ends]
        places = (self.ratios[self.ends] - lowest[of]) / np.where(width, width, 1.0)[of]
        lower = np.minimum(np.searchsorted(RATIO_PLACES, places, side="right"), len(RATIO_PLACES) - 1) - 1
        first, second = RATIO_PLACES[lower], RATIO_PLACES[lower + 1]
        upper = (places - first) / (second - first)
        discounts: Vector = np.minimum(0.0, (1 - upper) * values[lower, of] + upper * values[lower + 1, of])
        return discounts

    def _least_rest(self, covers: Integers, places: Integers, missing: Vector) -> Vector:
        """What no tenancies cost less than that give what is missing, all but the last at this end or later ones."""
        by_ratio = missing * self.ratios[self.ends[places]] + self.discounts[places]
        least: Vector = np.maximum(by_ratio, missing * self.best_ratios[covers])
        return least

    def _close(self, sets: _Sets, by_copies: bool = False) -> None:
        """Close sets by the cheapest last tenancy, before it by as many copies of the best end as fit, if so."""
        if not len(sets.covers):
            return
        rows, copies, missing, costs = self.rows, np.zeros(len(sets.covers)), sets.missing, sets.costs
        if by_copies:
            ends = self.best_ends[sets.covers]
            copies = np.maximum(np.ceil(missing / self.end_rates[ends] - WHOLE) - 1, 0.0)
            missing = missing - copies * self.end_rates[ends]
            costs = costs + copies * self.end_costs[ends]
        owners, uses = _spread(rows.use_starts[sets.covers], rows.use_counts[sets.covers])
        shares = np.maximum(missing[owners] / rows.use_rates[uses], rows.least_shares[uses])
        last = self._costs(uses, shares, np.searchsorted(STEPS_AFTER, shares))
        last[shares > 1 + WHOLE] = np.inf
        least = np.minimum.reduceat(last, _starts(rows.use_counts[sets.covers]))
        costs = costs + least
        better = np.flatnonzero(costs < self.costs[sets.covers])
        if not len(better):
            return
        at = _first(last == least[owners], owners)
        for number, cover in zip(better.tolist(), sets.covers[better].tolist(), strict=True):
            if costs[number] < self.costs[cover]:
                self.costs[cover] = costs[number]
                last_at = at[number]
                self.closed[cover] = (
                    int(sets.numbers[number]),
                    int(copies[number]),
                    int(uses[last_at]),
                    min(1.0, float(shares[last_at])),
                )

    def _costs(self, uses: Integers, shares: Vector, steps: Integers) -> Vector:
        """What shares of uses cost, each in a step of STEPS."""
        pools = self.rows.use_pools[uses]
        costs: Vector = self.fixed[uses] + self.slopes[pools] * shares + self.steps[pools, steps]
        return costs

    def _limits(self) -> Vector:
        """By cover what a better one costs less than: the best one, and what the best pattern of its owner leaves."""
        rows = self.rows
        best = np.minimum.reduceat(np.add.reduceat(self.costs, rows.option_starts), rows.owner_starts)
        others = self.option_least[rows.cover_options] - self.least
        limits: Vector = np.minimum(self.costs, best[rows.cover_owners] - others)
        return limits

    def _bounds(self) -> Vector:
        rows = self.rows
        covers = np.minimum(np.minimum(self.costs, self.open_bounds), self._limits())
        is_open = np.minimum.reduceat(self.open_bounds, rows.option_starts) < np.inf
        bounds: Vector = np.where(is_open, np.add.reduceat(covers, rows.option_starts), self.option_costs)
        was_searched = np.isfinite(self.option_costs)
        searched: Vector = np.where(was_searched, np.minimum(bounds, self.option_costs), self.option_least)
        return searched

    def pattern(self, owner: int) -> Pattern:
        """The cheapest pattern of an owner."""
        rows = self.rows
        first, end = np.searchsorted(rows.owners, (owner, owner + 1)).tolist()
        option = first + int(self.option_costs[first:end].argmin())
        covers = np.flatnonzero(rows.cover_options == option).tolist()
        tenancies = tuple(
            (stage, use, share) for stage, cover in enumerate(covers) for use, share in self._tenancies(cover)
        )
        bound, cost = float(self.bounds[first:end].min()), float(self.option_costs[option])
        return Pattern(bound, cost, rows.numbers[option], tenancies)

    def _tenancies(self, cover: int) -> Iterator[tuple[int, float]]:
        """The uses, by number in their stage, with shares; the last one is any share, all others are ends."""
        rows = self.rows
        number, copies, last, share = self.closed[cover]
        ends = copies * [int(self.best_ends[cover])]
        while self.parents[number] >= 0:
            end, copies = self.added[number]
            ends += copies * [end]
            number = self.parents[number]
        first = int(rows.use_starts[cover])
        yield from ((int(self.end_uses[end]) - first, float(self.end_shares[end])) for end in ends)
        yield last - first, share


def _starts(counts: Sequence[int] | Integers) -> Integers:
    """Where parts of these lengths begin."""
    sizes = np.asarray(counts, dtype=np.int64)
    starts: Integers = np.cumsum(sizes) - sizes
    return starts


def _spread(firsts: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """The numbers from each first one on, so many of each, and whose they are."""
    owners = np.repeat(np.arange(len(counts)), counts)
    return owners, np.arange(len(owners)) + (firsts - _starts(counts))[owners]


def _undominated(covers: Integers, first: Vector, second: Vector) -> Integers:
    """The places, cover by cover, of those of which no other one is as low in both and lower in one, and of equal ones
    the first."""
    order = np.lexsort((second, first, covers))
    of = covers[order]
    # Those of later covers are lower than all of earlier ones.
    falling = second[order] - of * (2 * float(second.max()) + 1)
    lower = np.ones(len(order), dtype=np.bool_)
    lower[1:] = falling[1:] < np.minimum.accumulate(falling)[:-1]
    undominated: Integers = order[lower]
    return undominated


def _first(hits: NDArray[np.bool_], owners: Integers) -> Integers:
    """The place of the first hit of each owner, of whom each has one; owners are in order."""
    places = np.flatnonzero(hits)
    return places[np.searchsorted(owners[places], np.arange(owners[-1] + 1))]
