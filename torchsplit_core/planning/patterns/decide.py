"""Whether every model can reach its level at once: by prices (no), or by a choice of patterns (yes).

A question is a rising list of levels; the first holds for every model, below the i-th at most
`allowed[i]` of its models may stay. Prices π answer "no" by arithmetic alone: where the cheapest
patterns of all models together cost more than the whole fleet is worth, no plan exists. The
prices come from the master's linear program by column generation. "Yes" is a choice of
patterns; where all patterns that any plan could use were in the master, "none" is a proof too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.master import Column, Duals, Flags, choose, relax
from torchsplit_core.planning.patterns.options import Options
from torchsplit_core.planning.patterns.pattern import Offers, Pattern, offers
from torchsplit_core.planning.patterns.supply import Supply, Vector
from torchsplit_core.values.status import SearchVerdict

CERTAIN = 1e-7
"""Relative excess over the fleet's worth at which prices prove a "no"."""

PRICE_FLOOR = 1e-4
"""Least price of a slice in units of the dearest: a slice that costs nothing has endless covers."""

QUICK_S = 0.5
"""Seconds at least that the master gets for whole numbers without a proof."""

MOST_ROUNDS = 60
NEW_PER_MODEL = 4
"""Patterns a model gets in one round of column generation."""

MOST_PER_MODEL = 400
"""Patterns of one model and class in a master whose "none" is to be a proof."""


@dataclass(frozen=True)
class Demands:
    """What the models want: `units[m]` requests/s for a level of 1, and their minima.

    More than `caps[m]` does not count, and more than `ceilings[m]` no plan can give. `tiers[m]` is served up to a level
    of 1 before lower ones.
    """

    units: Vector
    minima: Vector
    caps: Vector
    ceilings: Vector
    tiers: NDArray[np.int_]

    def at(self, model: int, level: float) -> float:
        """Requests/s that the model must have to stand at the level."""
        return max(float(self.minima[model]), level * float(self.units[model]))

    def turn(self, model: int, level: float) -> tuple[int, float]:
        """Least first: whose turn it is to be served better, a model that stands at this level."""
        return (1 if level >= 1 else -int(self.tiers[model]), level)


@dataclass(frozen=True)
class Question:
    """Levels, never falling, and for each but the first how many models may stay below it, of which it speaks.

    `among[i]` are those models (by number); empty: all levels speak of all models.
    """

    levels: tuple[float, ...]
    allowed: tuple[int, ...] = ()
    among: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Plan:
    """A pattern for every model and GPUs by layout column."""

    patterns: tuple[Pattern, ...]
    layouts: np.ndarray


@dataclass
class Decision:
    """Whether there is a plan: "none" is proven, "unknown" says that neither a plan nor a proof was found.

    `zeta`: the part of the fleet that the linear program needs, where it was solved.
    """

    verdict: SearchVerdict
    plan: Plan | None = None
    zeta: float = float("nan")


@dataclass
class PatternSearch:
    """The patterns known so far and the last prices, shared by all questions about one problem."""

    supply: Supply
    options: Sequence[Options]
    demands: Demands
    prices: Vector
    known: list[dict[tuple[int, bytes], Pattern]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = [{} for _ in self.options]

    def price(self, question: Question, deadline: float) -> float | None:
        """The part of the fleet that the linear program needs; None where prices prove that there is none.

        Not a number where time ran out first.
        """
        if self._blocked(question):
            return None
        duals = self._prices(question, deadline)
        return duals if duals is None else duals.zeta

    def decide(self, question: Question, deadline: float, *, prove: bool) -> Decision:
        """Answer the question; without `prove` only with the patterns that the prices brought up."""
        if self._blocked(question):
            return Decision("none")
        duals = self._prices(question, deadline)
        if duals is None:
            return Decision("none")
        if duals.zeta != duals.zeta:
            return Decision("unknown")
        until = deadline
        if not prove:
            # A plan that is there is mostly found at once.
            until = min(deadline, time.perf_counter() + max(QUICK_S, 0.1 * (deadline - time.perf_counter())))
        answer = self._choose(question, until, self._columns(question, duals))
        if answer.verdict == "found":
            return replace(answer, zeta=duals.zeta)
        full = self._all_columns(question, duals, deadline) if prove else None
        if full is None:
            return Decision("unknown", zeta=duals.zeta)
        columns, complete = full
        answer = self._choose(question, deadline, columns)
        return Decision("unknown") if answer.verdict == "none" and not complete else answer

    def least_level(self) -> float:
        """No model that runs at all stands below this level (infinite where none can run)."""
        least = float("inf")
        for model, mine in enumerate(self.options):
            for option in mine.all:
                slowest = min(float(offer.rates[offer.rates > 0].min()) for offer in option.stages)
                least = min(least, slowest / float(self.demands.units[model]))
        return min([least, *(float(cap) for cap in self.demands.caps)])

    def linear_costs(self) -> Vector:
        """What a level of 1 costs each model at least, at the last prices and with divisible slices."""
        cheapest = [float(mine.unit_costs(self.prices).min(initial=np.inf)) for mine in self.options]
        return np.where(np.isfinite(cheapest), cheapest, 0.0) * self.demands.units

    def _blocked(self, question: Question) -> bool:
        """Whether more models than allowed cannot reach a level at all."""
        everybody = np.ones((1, len(self.options)), dtype=np.bool_)
        among = np.concatenate([everybody, self._among(question)])
        for level, most, models in zip(question.levels, (0, *question.allowed), among, strict=True):
            short = sum(not self._reachable(model, level) for model in np.flatnonzero(models).tolist())
            if short > most:
                return True
        return False

    def _among(self, question: Question) -> Flags:
        """For each level but the first, of which models it speaks."""
        found = np.zeros((len(question.allowed), len(self.options)), dtype=np.bool_)
        if not question.among:
            found[:] = True
        for number, models in enumerate(question.among):
            found[number, list(models)] = True
        return found

    def _fines(self, question: Question, below: Vector) -> NDArray[np.float64]:
        """By model and level reached, what the levels beyond it that speak of the model fine it."""
        due = self._among(question).T * below
        found = np.zeros((len(self.options), len(below) + 1))
        found[:, :-1] = np.cumsum(due[:, ::-1], axis=1)[:, ::-1]
        return found

    def _reachable(self, model: int, level: float) -> bool:
        return level <= self.demands.ceilings[model] * (1 + 1e-12) and (
            bool(self.options[model].all) or self.demands.at(model, level) <= 0
        )

    def _levels_of(self, question: Question, model: int) -> Iterator[tuple[int, float]]:
        """The levels that speak of the model and that it can reach, with their numbers."""
        for number, level in enumerate(question.levels):
            spoken = not number or not question.among or model in question.among[number - 1]
            if spoken and self._reachable(model, level):
                yield number, level

    def _best(
        self, model: int, question: Question, prices: Vector, fines: Vector, keep: int = 1
    ) -> tuple[float, list[Offers]]:
        """The least cost of the model (a lower bound) with its `fines`, and its offers by level."""
        least = float("inf")
        found = []
        for number, level in self._levels_of(question, model):
            offer = offers(
                self.options[model], prices, self.demands.at(model, level), self.supply.most, keep=keep
            )
            least = min(least, offer.least + float(fines[number]))
            found.append(offer)
        return least, found

    def _prices(self, question: Question, deadline: float) -> Duals | None:
        """Prices from column generation; None where they prove that no plan exists.

        ζ is not a number where time ran out before the linear program was solved.
        """
        below = np.zeros(len(question.allowed))
        excess = self._offer_round(question, self.prices, below, None, deadline)
        if excess > CERTAIN:
            return None
        duals = Duals(float("nan"), self.prices, np.zeros(0), below)
        for _ in range(MOST_ROUNDS):
            if excess != excess:
                return replace(duals, zeta=float("nan"))
            columns = self._known_columns(question)
            duals = relax(self.supply, self._among(question), columns, question.allowed)
            floor = PRICE_FLOOR * max(float(duals.prices.max(initial=0.0)), 1e-12)
            self.prices = np.maximum(duals.prices, floor)
            before = sum(len(mine) for mine in self.known)
            excess = self._offer_round(question, self.prices, duals.below, duals, deadline)
            if excess > CERTAIN:
                return None
            if sum(len(mine) for mine in self.known) == before:
                break
        return duals

    def _offer_round(
        self, question: Question, prices: Vector, below: Vector, duals: Duals | None, deadline: float
    ) -> float:
        """Take in the cheapest patterns of every model.

        Returns by how much they cost more than the fleet is worth, relative to it: above 0 no
        plan exists. Not a number where time ran out.
        """
        total = -float(below @ np.array(question.allowed, dtype=float)) if len(below) else 0.0
        fines = self._fines(question, below)
        for model in range(len(self.options)):
            if time.perf_counter() > deadline:
                return float("nan")
            least, found = self._best(model, question, prices, fines[model], NEW_PER_MODEL)
            total += least
            if duals is not None and least >= duals.models[model] - 1e-9:
                continue
            for offer in found:
                for pattern in offer.patterns:
                    self._keep(model, pattern)
        worth = self.supply.worth(prices)
        return total / worth - 1.0 if worth > 0 else (1.0 if total > 0 else -1.0)

    def _keep(self, model: int, pattern: Pattern) -> None:
        self.known[model].setdefault((pattern.option, pattern.stages.tobytes()), pattern)

    def _class(self, model: int, pattern: Pattern, question: Question) -> int:
        """The highest level the pattern reaches; -1 where not even the first."""
        reached = -1
        for number, level in enumerate(question.levels):
            if self._reachable(model, level) and pattern.rate >= self.demands.at(model, level) * (1 - 2e-9):
                reached = number
        return reached

    def _known_columns(self, question: Question) -> list[Column]:
        return [
            (model, level, pattern.usage)
            for model, mine in enumerate(self.known)
            for pattern in mine.values()
            if (level := self._class(model, pattern, question)) >= 0
        ]

    def _columns(self, question: Question, duals: Duals, most: int = 40) -> list[tuple[Column, Pattern]]:
        """The known patterns that are cheapest at these prices, at most `most` a model."""
        found: list[tuple[Column, Pattern]] = []
        fines = self._fines(question, duals.below)
        for model, mine in enumerate(self.known):
            ranked = []
            for pattern in mine.values():
                level = self._class(model, pattern, question)
                if level >= 0:
                    cost = float(pattern.usage @ self.prices) + float(fines[model, level])
                    ranked.append((cost, level, pattern))
            ranked.sort(key=lambda item: item[0])
            found += [((model, level, pattern.usage), pattern) for _, level, pattern in ranked[:most]]
        return found

    def _all_columns(
        self, question: Question, duals: Duals, deadline: float
    ) -> tuple[list[tuple[Column, Pattern]], bool] | None:
        """Every pattern that some plan could use, by reduced cost: the slack is what the prices leave.

        Also whether really all are there; None where time ran out.
        """
        prices, below = self.prices, duals.below
        worth = self.supply.worth(prices)
        fines = self._fines(question, below)
        leasts = [self._best(model, question, prices, fines[model])[0] for model in range(len(fines))]
        allowance = float(below @ np.array(question.allowed, dtype=float)) if len(below) else 0.0
        slack = worth + allowance - sum(leasts) + 1e-9 * worth
        found: list[tuple[Column, Pattern]] = []
        complete = True
        for model, least in enumerate(leasts):
            if time.perf_counter() > deadline:
                return None
            for number, level in self._levels_of(question, model):
                # What may be spent on this class: the least cost and the slack, less the fine for its class.
                within = least + slack - float(fines[model, number])
                demand = self.demands.at(model, level)
                offer = offers(
                    self.options[model], prices, demand, self.supply.most, within=within, keep=MOST_PER_MODEL
                )
                complete = complete and not offer.cut and offer.complete >= within - 1e-9 * abs(within)
                found += [((model, number, pattern.usage), pattern) for pattern in offer.patterns]
        return found, complete

    def _choose(self, question: Question, deadline: float, columns: list[tuple[Column, Pattern]]) -> Decision:
        left = deadline - time.perf_counter()
        picked = choose(
            self.supply, self._among(question), [column for column, _ in columns], question.allowed, left
        )
        if picked == "none":
            return Decision("none")
        if picked == "unknown":
            return Decision("unknown")
        patterns = tuple(columns[number][1] for number in picked.columns)
        for model, pattern in enumerate(patterns):
            self._keep(model, pattern)
        return Decision("found", Plan(patterns, picked.layouts))
