"""Whether every model can reach its level at once: "no" by prices, or "yes" by a choice of patterns.

A problem is an ascending list of levels; the first holds for every model, and at most `allowed[i]` models may be below
the i-th. Prices π prove "no" by arithmetic: if the cheapest patterns of all models together cost more than the whole
fleet is worth, no plan exists. The prices come from the master's linear program by column generation. "Yes" is a choice
of patterns; if the master has all patterns that any plan could use, its "none" is a proof too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector
from torchsplit_core.planning.patterns.covers.knapsack_cover import DEMAND_SLACK
from torchsplit_core.planning.patterns.divisible import divisible_prices
from torchsplit_core.planning.patterns.master import (
    Column,
    Duals,
    Flags,
    interior_duals,
    solve_integer,
    solve_relaxation,
)
from torchsplit_core.planning.patterns.mixture import Mixture, PatternPart, keep_pattern, mix_slices
from torchsplit_core.planning.patterns.options import ModelOptions
from torchsplit_core.planning.patterns.pricing import Pattern, PricedPatterns, price_patterns
from torchsplit_core.values.status import SearchVerdict

PROOF_MARGIN = 1e-7
"""Relative excess over the fleet's value at which prices prove a "no"."""

PRICE_FLOOR = 1e-4
"""Least price of a slice in units of the dearest: a free slice would have endless covers."""

MIN_MASTER_S, MIN_LARGE_MASTER_S = 0.5, 2.0
"""Least seconds of the master for an integer solution without a proof; the second with many layouts."""

NEW_LAYOUTS, NEGLIGIBLE_WORTH = 40, 1e-9
"""Layouts of a group that the linear program is offered at a time, where they are many, and a worth that is rounding in
units of a fleet."""

MOST_ROUNDS = 60
NEW_PER_MODEL = 4
"""Patterns added for a model in a round of column generation."""

MANY_LAYOUTS, FEW_GPUS = 300, 16
"""Layout columns from which on, and GPUs up to which, plans are sought that save GPUs."""

MOST_PER_MODEL, MOST_TOGETHER = 400, 20_000
"""Patterns of a model and class in a master whose "none" must be a proof, and of all models in a second one, where the
first leaves some out."""


@dataclass(frozen=True)
class LevelDemand:
    """The models' demands: `units[m]` requests/s for a level of 1, and their minima.

    More than `caps[m]` does not count, and no plan gives more than `ceilings[m]`. `tiers[m]` is served up to a level of
    1 before lower ones.
    """

    units: Vector
    minima: Vector
    caps: Vector
    ceilings: Vector
    tiers: NDArray[np.int_]

    def required_rps(self, model: int, level: float) -> float:
        """Requests/s that the model needs for the level."""
        return max(float(self.minima[model]), level * float(self.units[model]))

    def priority(self, model: int, level: float) -> tuple[int, float]:
        """Sort key, smallest first, of the model to serve better next, if it is at this level."""
        return (1 if level >= 1 else -int(self.tiers[model]), level)


@dataclass(frozen=True)
class FeasibilityProblem:
    """Ascending levels, and for each but the first how many of its models may be below it.

    `subsets[i]` are the models of a level (indices); empty: every level applies to all models.
    """

    levels: tuple[float, ...]
    allowed: tuple[int, ...] = ()
    subsets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class PatternPlan:
    """A pattern for every model, and GPUs by layout column."""

    patterns: tuple[Pattern, ...]
    layouts: np.ndarray


@dataclass
class Decision:
    """Whether there is a plan. "none" is proven; "unknown": neither a plan nor a proof was found.

    `zeta`: the part of the fleet that the linear program needs, if it was solved.
    """

    verdict: SearchVerdict
    plan: PatternPlan | None = None
    zeta: float = float("nan")


@dataclass(frozen=True)
class UsableColumns:
    """The patterns that some plan could use, whether these are all, and the worth that their cheapest ones leave."""

    columns: list[tuple[Column, Pattern]]
    complete: bool
    slack: float


@dataclass
class PatternSearch:
    """The known patterns and the last prices, shared by all feasibility problems of one request.

    `most[model, pool]`: the most slices of a pool in a stage of the model.
    `on_better` gets each better plan with its first level. A model in `closed` (an index) takes no idle slices.
    """

    capacity: FleetCapacity
    options: Sequence[ModelOptions]
    demand: LevelDemand
    prices: Vector
    most: Counts
    pool: list[dict[tuple[int, bytes], Pattern]] = field(default_factory=list)
    on_better: Callable[[float, PatternPlan], None] = lambda level, plan: None
    closed: frozenset[int] = frozenset()
    offered: NDArray[np.bool_] = field(init=False)
    """Whether a layout column is in the linear program, where these are many."""
    quick_share: ClassVar[float] = 0.15
    """Part of the remaining time of a master whose "none" proves nothing."""
    quick_patterns: ClassVar[int] = 40
    """Its patterns of a model."""

    def __post_init__(self) -> None:
        self.pool = [{} for _ in self.options]
        self.offered = np.zeros(len(self.capacity.columns), dtype=np.bool_)

    def start_from_divisible_prices(self, rising: Sequence[int]) -> None:
        """Take the prices at the highest level that the models `rising` (indices) reach with divisible slices."""
        prices = divisible_prices(self.capacity, self.options, self.demand.units, self.demand.minima, rising)
        if prices is not None:
            self.take_prices(prices)

    def take_patterns(self, before: PatternSearch) -> None:
        """Begin with the prices of another search of these options, and with its patterns that the limits allow."""
        self.take_prices(before.prices)
        for model, patterns in enumerate(before.pool):
            for pattern in patterns.values():
                if self._is_allowed(model, pattern):
                    self.take_pattern(model, pattern)

    def _is_allowed(self, model: int, pattern: Pattern) -> bool:
        """Whether the pattern keeps to the most slices, and enough of each stage without its largest slice."""
        if (pattern.stages > self.most[model]).any():
            return False
        offers = self.options[model].options[pattern.option].stages if pattern.option >= 0 else ()
        return all(
            float(offer.rates @ counts) - float(offer.rates[counts > 0].max())
            >= offer.least_after_loss_rps * (1 - DEMAND_SLACK)
            for offer, counts in zip(offers, pattern.stages, strict=True)
            if offer.least_after_loss_rps > 0
        )

    def take_prices(self, prices: Vector) -> None:
        """Price slices anew, none of them at 0."""
        self.prices = np.maximum(prices, PRICE_FLOOR * max(float(prices.max(initial=0.0)), 1e-12))

    def fleet_share(self, problem: FeasibilityProblem, deadline: float, enough: float = 0.0) -> float | None:
        """The part of the fleet that the linear program needs; None: provably no plan; NaN: time ran out.

        No more patterns are generated once that is no more than `enough`.
        """
        if self._is_blocked(problem):
            return None
        duals = self._generate_columns(problem, deadline, enough)
        return duals if duals is None else duals.zeta

    def decide(
        self,
        problem: FeasibilityProblem,
        deadline: float,
        *,
        prove: bool,
        enough: float = 0.0,
        most: int = 0,
    ) -> Decision:
        """Decide the problem; without `prove` only with the patterns that the prices generated.

        With `most` the so many cheapest patterns of each model take their place: to list them takes longer. No more
        patterns are generated once the linear program needs no more than the part `enough` of the fleet.
        """
        if self._is_blocked(problem):
            return Decision("none")
        duals = self._generate_columns(problem, deadline, enough)
        if duals is None:
            return Decision("none")
        if duals.zeta != duals.zeta:
            return Decision("unknown")
        if prove and self.has_many_layouts:
            # A search among few patterns takes as long as the proof.
            return self._prove(problem, self._take_interior_prices(problem, duals), deadline)
        columns = self.cheapest_columns(problem, duals.below, self.quick_patterns)
        if most:
            worth = self.capacity.worth(self.prices)
            listed = self.all_columns(problem, duals.below, worth, deadline, most)
            columns = columns if listed is None else listed.columns
        until = deadline
        if not prove:
            least = MIN_LARGE_MASTER_S if self.has_many_layouts else MIN_MASTER_S
            now = time.perf_counter()
            until = min(deadline, now + max(least, self.quick_share * (deadline - now)))
        decision = self._solve_master(problem, until, columns)
        if decision.verdict == "found":
            return replace(decision, zeta=duals.zeta)
        return self._prove(problem, duals, deadline) if prove else Decision("unknown", zeta=duals.zeta)

    def _prove(self, problem: FeasibilityProblem, duals: Duals, deadline: float) -> Decision:
        """A plan, or the proof that there is none, of all patterns that any plan could use."""
        worth = self.capacity.worth(self.prices)
        more = MOST_TOGETHER // len(self.options)
        for most in (MOST_PER_MODEL, *[more] * (more > MOST_PER_MODEL)):
            full = self.all_columns(problem, duals.below, worth, deadline, most)
            if full is None:
                break
            usable = self._usable_layouts(full.slack) if self.has_many_layouts else None
            decision = self._solve_master(problem, deadline, full.columns, usable)
            if full.complete or decision.verdict != "none":
                return decision
        return Decision("unknown", zeta=duals.zeta)

    def _take_interior_prices(self, problem: FeasibilityProblem, duals: Duals) -> Duals:
        """Price slices so that as few layouts as can be may be part of a plan; the duals of these prices."""
        columns = self.pool_columns(problem)
        interior = interior_duals(self.capacity, self.subset_flags(problem), columns, problem.allowed)
        if interior is None:
            return duals
        self.take_prices(interior.prices)
        return interior

    def _usable_layouts(self, slack: float) -> NDArray[np.bool_]:
        """The layout columns that may be part of a plan, whose patterns leave `slack` of the fleet's worth.

        A GPU with a layout that is worth less than the dearest one leaves the difference.
        """
        capacity = self.capacity
        if len(capacity.at_most):
            return np.ones(len(capacity.columns), dtype=np.bool_)
        worth = capacity.values(self.prices)
        usable: NDArray[np.bool_] = capacity.dearest(worth)[capacity.group_of] - worth <= slack
        return usable

    def least_level(self) -> float:
        """A lower bound of the level of any model that runs (infinite if none can run)."""
        least = float("inf")
        for model, model_options in enumerate(self.options):
            for option in model_options.options:
                slowest = min(float(offer.rates[offer.rates > 0].min()) for offer in option.stages)
                least = min(least, slowest / float(self.demand.units[model]))
        return min([least, *(float(cap) for cap in self.demand.caps)])

    def linear_costs(self) -> Vector:
        """The least cost of a level of 1 for each model, at the last prices and with divisible slices."""
        cheapest = [
            float(model_options.unit_costs(self.prices).min(initial=np.inf)) for model_options in self.options
        ]
        return np.where(np.isfinite(cheapest), cheapest, 0.0) * self.demand.units

    def _is_blocked(self, problem: FeasibilityProblem) -> bool:
        """Whether more models than allowed cannot reach a level at all."""
        everybody = np.ones((1, len(self.options)), dtype=np.bool_)
        among = np.concatenate([everybody, self.subset_flags(problem)])
        for level, most, models in zip(problem.levels, (0, *problem.allowed), among, strict=True):
            short = sum(not self._reachable(model, level) for model in np.flatnonzero(models).tolist())
            if short > most:
                return True
        return False

    def subset_flags(self, problem: FeasibilityProblem) -> Flags:
        """For each level but the first, the models to which it applies."""
        flags = np.zeros((len(problem.allowed), len(self.options)), dtype=np.bool_)
        if not problem.subsets:
            flags[:] = True
        for number, models in enumerate(problem.subsets):
            flags[number, list(models)] = True
        return flags

    def _level_penalties(self, problem: FeasibilityProblem, below: Vector) -> NDArray[np.float64]:
        """By model and level reached, the penalties of the levels above it that apply to the model."""
        weights = self.subset_flags(problem).T * below
        penalties = np.zeros((len(self.options), len(below) + 1))
        penalties[:, :-1] = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
        return penalties

    def _reachable(self, model: int, level: float) -> bool:
        return level <= self.demand.ceilings[model] * (1 + 1e-12) and (
            bool(self.options[model].options) or self.demand.required_rps(model, level) <= 0
        )

    def _reachable_levels(self, problem: FeasibilityProblem, model: int) -> Iterator[tuple[int, float]]:
        """The levels that apply to the model and that it can reach, with their indices."""
        for number, level in enumerate(problem.levels):
            applies = not number or not problem.subsets or model in problem.subsets[number - 1]
            if applies and self._reachable(model, level):
                yield number, level

    def price_level(
        self, model: int, level: float, prices: Vector, *, max_cost: float | None = None, keep: int
    ) -> PricedPatterns:
        """The `keep` cheapest patterns of the model that reach the level; all up to `max_cost` if given."""
        return price_patterns(
            self.options[model],
            prices,
            self.demand.required_rps(model, level),
            self.most[model],
            max_cost=max_cost,
            keep=keep,
        )

    def _price_model(
        self, model: int, problem: FeasibilityProblem, prices: Vector, penalties: Vector, keep: int = 1
    ) -> tuple[float, list[PricedPatterns]]:
        """The least cost of the model (a lower bound) with its `penalties`, and its patterns by level."""
        least = float("inf")
        priced = []
        for number, level in self._reachable_levels(problem, model):
            priced_patterns = self.price_level(model, level, prices, keep=keep)
            least = min(least, priced_patterns.least + float(penalties[number]))
            priced.append(priced_patterns)
        return least, priced

    def _generate_columns(
        self, problem: FeasibilityProblem, deadline: float, enough: float = 0.0
    ) -> Duals | None:
        """Prices by column generation, until ζ is `enough`; None if they prove that no plan exists.

        ζ is NaN if time ran out before the linear program was solved.
        """
        below = np.zeros(len(problem.allowed))
        excess = self._pricing_round(problem, self.prices, below, None, deadline)
        if excess > PROOF_MARGIN:
            return None
        duals = Duals(float("nan"), self.prices, np.zeros(0), below, np.zeros(0), np.zeros(0))
        for _ in range(MOST_ROUNDS):
            if excess != excess:
                return replace(duals, zeta=float("nan"))
            duals = self._relax(problem)
            self.take_prices(duals.prices)
            if duals.zeta <= enough:
                break
            before = self.pool_size
            excess = self._pricing_round(problem, self.prices, duals.below, duals, deadline)
            if excess > PROOF_MARGIN:
                return None
            if self.pool_size == before:
                break
        return duals

    def _relax(self, problem: FeasibilityProblem) -> Duals:
        """The linear program over the known patterns, where layouts are many over those that turn out to be dearest."""
        capacity, subsets, columns = self.capacity, self.subset_flags(problem), self.pool_columns(problem)
        if not self.has_many_layouts:
            return solve_relaxation(capacity, subsets, columns, problem.allowed)
        worth = capacity.values(self.prices)
        while True:
            self.offered |= self._dearest_layouts(worth)
            duals = solve_relaxation(
                capacity.restricted(np.flatnonzero(self.offered)), subsets, columns, problem.allowed
            )
            worth = capacity.values(duals.prices)
            dearest = capacity.dearest(np.where(self.offered, worth, 0.0))
            if (capacity.dearest(worth) <= dearest * (1 + PROOF_MARGIN) + NEGLIGIBLE_WORTH).all():
                return duals

    def _dearest_layouts(self, worth: Vector) -> NDArray[np.bool_]:
        """The NEW_LAYOUTS layout columns of each group that are worth most."""
        dearest = np.zeros(len(worth), dtype=np.bool_)
        for group in range(len(self.capacity.gpus)):
            columns = np.flatnonzero(self.capacity.group_of == group)
            dearest[columns[np.argsort(-worth[columns], kind="stable")[:NEW_LAYOUTS]]] = True
        return dearest

    @property
    def pool_size(self) -> int:
        """The number of known patterns."""
        return sum(len(patterns) for patterns in self.pool)

    def _pricing_round(
        self, problem: FeasibilityProblem, prices: Vector, below: Vector, duals: Duals | None, deadline: float
    ) -> float:
        """Add the cheapest patterns of every model.

        Returns by how much they cost more than the fleet is worth, relative to it: above 0 no plan exists. NaN if time
        ran out.
        """
        total = self.price_models(problem, prices, below, duals, deadline)
        worth = self.capacity.worth(prices)
        return total / worth - 1.0 if worth > 0 else (1.0 if total > 0 else -1.0)

    def price_models(
        self, problem: FeasibilityProblem, prices: Vector, below: Vector, duals: Duals | None, deadline: float
    ) -> float:
        """Add the cheapest patterns of every model, if `duals` are given those that improve them.

        Returns the least cost of all models together (a lower bound); NaN if time ran out.
        """
        total = -float(below @ np.array(problem.allowed, dtype=float)) if len(below) else 0.0
        penalties = self._level_penalties(problem, below)
        for model in range(len(self.options)):
            if time.perf_counter() > deadline:
                return float("nan")
            least, priced = self._price_model(model, problem, prices, penalties[model], NEW_PER_MODEL)
            total += least
            if duals is not None and least >= duals.models[model] - 1e-9:
                continue
            for priced_patterns in priced:
                for pattern in priced_patterns.patterns:
                    self.take_pattern(model, pattern)
        return total

    def take_pattern(self, model: int, pattern: Pattern) -> None:
        """Know the pattern from here on."""
        self.pool[model].setdefault((pattern.option, pattern.stages.tobytes()), pattern)

    def reached_level(self, model: int, pattern: Pattern, problem: FeasibilityProblem) -> int:
        """The highest level that the pattern reaches; -1 if not even the first."""
        reached = -1
        for number, level in enumerate(problem.levels):
            if self._reachable(model, level) and pattern.rate >= self.demand.required_rps(model, level) * (
                1 - 2e-9
            ):
                reached = number
        return reached

    def instance_counts(self, plan: PatternPlan, models: Iterable[int]) -> list[tuple[int, int]]:
        """Instances of these models (indices) by choice, as (its index in the problem, count), sorted."""
        counts: Counter[int] = Counter()
        for model in models:
            pattern = plan.patterns[model]
            for stage, slices in enumerate(pattern.stages):
                offer = self.options[model].options[pattern.option].stages[stage]
                for pool in np.flatnonzero(slices).tolist():
                    counts[offer.choices[pool]] += int(slices[pool])
        return sorted(counts.items())

    def known_patterns(self, problem: FeasibilityProblem) -> list[tuple[int, int, Pattern]]:
        """Model, level and pattern of every known pattern that reaches a level."""
        return [
            (model, level, pattern)
            for model, patterns in enumerate(self.pool)
            for pattern in patterns.values()
            if (level := self.reached_level(model, pattern, problem)) >= 0
        ]

    def pool_columns(self, problem: FeasibilityProblem) -> list[Column]:
        """The same as columns of the master."""
        return [(model, level, pattern.usage) for model, level, pattern in self.known_patterns(problem)]

    def mix(self, model: int, parts: Sequence[PatternPart], level: float) -> Mixture | None:
        """What these parts of the model's patterns hold, for this level; None if it cannot be counted."""
        need = self.demand.required_rps(model, level)
        if need <= 0:
            return keep_pattern(parts[0][1])
        return mix_slices(self.options[model], self.most[model], parts, need)

    def cheapest_columns(
        self, problem: FeasibilityProblem, below: Vector, most: int = 40
    ) -> list[tuple[Column, Pattern]]:
        """The cheapest known patterns at the last prices, at most `most` a model."""
        columns: list[tuple[Column, Pattern]] = []
        penalties = self._level_penalties(problem, below)
        for model, patterns in enumerate(self.pool):
            ranked = []
            for pattern in patterns.values():
                level = self.reached_level(model, pattern, problem)
                if level >= 0:
                    cost = float(pattern.usage @ self.prices) + float(penalties[model, level])
                    ranked.append((cost, level, pattern))
            ranked.sort(key=lambda item: item[0])
            columns += [((model, level, pattern.usage), pattern) for _, level, pattern in ranked[:most]]
        return columns

    def all_columns(
        self,
        problem: FeasibilityProblem,
        below: Vector,
        worth: float,
        deadline: float,
        most: int | None = None,
    ) -> UsableColumns | None:
        """Every pattern that some plan of at most `worth` at the last prices could use, cheapest first.

        At most `most` of a model and level are taken. None if time ran out.
        """
        most = MOST_PER_MODEL if most is None else most
        prices = self.prices
        penalties = self._level_penalties(problem, below)
        leasts = [
            self._price_model(model, problem, prices, penalties[model])[0] for model in range(len(penalties))
        ]
        allowance = float(below @ np.array(problem.allowed, dtype=float)) if len(below) else 0.0
        slack = worth + allowance - sum(leasts) + 1e-9 * worth
        columns: list[tuple[Column, Pattern]] = []
        complete = True
        for model, least in enumerate(leasts):
            if time.perf_counter() > deadline:
                return None
            for number, level in self._reachable_levels(problem, model):
                # The budget of this class: the least cost and the slack, minus the penalty of its class.
                within = least + slack - float(penalties[model, number])
                priced_patterns = self.price_level(model, level, prices, max_cost=within, keep=most)
                complete = (
                    complete
                    and not priced_patterns.truncated
                    and priced_patterns.complete_below >= within - 1e-9 * abs(within)
                )
                columns += [((model, number, pattern.usage), pattern) for pattern in priced_patterns.patterns]
        return UsableColumns(columns, complete, slack)

    @property
    def has_many_layouts(self) -> bool:
        """Whether few GPUs have many layouts."""
        return len(self.capacity.columns) > MANY_LAYOUTS and int(self.capacity.gpus.sum()) <= FEW_GPUS

    def _solve_master(
        self,
        problem: FeasibilityProblem,
        deadline: float,
        columns: list[tuple[Column, Pattern]],
        usable: NDArray[np.bool_] | None = None,
    ) -> Decision:
        costs = None
        if self.has_many_layouts:
            # Then HiGHS has a plan or a proof sooner with GPUs to save than with missing slices to pay for.
            costs = np.ones(len(self.capacity.columns))
        plan = self.solve_columns(problem, columns, deadline - time.perf_counter(), costs, usable=usable)
        if isinstance(plan, PatternPlan):
            return Decision("found", plan)
        return Decision(plan)

    def solve_columns(
        self,
        problem: FeasibilityProblem,
        columns: list[tuple[Column, Pattern]],
        seconds: float,
        costs: Vector | None = None,
        max_cost: float = float("inf"),
        usable: NDArray[np.bool_] | None = None,
    ) -> PatternPlan | Literal["none", "unknown"]:
        """A plan of these patterns and of the `usable` layouts, on GPUs of at most `max_cost` if `costs` (by layout
        column) are given.

        "none" if these have provably no plan.
        """
        counts = solve_integer(
            self.capacity,
            self.subset_flags(problem),
            [column for column, _ in columns],
            problem.allowed,
            seconds,
            self.prices,
            costs,
            max_cost,
            usable,
        )
        if isinstance(counts, str):
            return counts
        patterns = tuple(columns[number][1] for number in counts.columns)
        for model, pattern in enumerate(patterns):
            self.take_pattern(model, pattern)
        return PatternPlan(patterns, counts.layouts)
