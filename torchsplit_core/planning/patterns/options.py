"""Every way a model can run, as stages with requests/s by pool: what the patterns are made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from torchsplit_core.planning.patterns.supply import Supply, Vector
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.problem.cases import VariantCase

MOST_COMBINATIONS = 50_000
"""Combinations of longest latencies that are looked at for one variant of several stages."""

MOST_OPTIONS = 1500
"""Options of one model."""


@dataclass(frozen=True)
class StageOffer:
    """Requests/s of one slice by pool (0: unusable), and the choice (its place) that gives it (-1: none)."""

    rates: Vector
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Option:
    """One way to run a model: all its stages are needed at the full throughput."""

    stages: tuple[StageOffer, ...]


class Options:
    """The options of one model, with their linear costs at a glance."""

    def __init__(self, found: Sequence[Option]) -> None:
        self.all = tuple(found)
        depth = max((len(option.stages) for option in found), default=0)
        width = len(found[0].stages[0].rates) if found else 0
        # A stage that an option has not got costs nothing: 0 requests' worth of every slice.
        inverse = np.zeros((len(found), depth, width))
        for number, option in enumerate(found):
            for stage, offer in enumerate(option.stages):
                with np.errstate(divide="ignore"):
                    inverse[number, stage] = 1.0 / offer.rates
        self._inverse = inverse

    def unit_costs(self, prices: Vector) -> Vector:
        """For each option the cost of one request/s at these prices (all above 0), slices divisible."""
        if not self.all:
            return np.zeros(0)
        return (self._inverse * prices).min(axis=2).sum(axis=1)  # type: ignore[no-any-return]


def options_of(problem: Problem, supply: Supply) -> tuple[Options, ...] | None:
    """The options of every model; None where a model has too many combinations of latencies."""
    found: list[list[Option]] = [[] for _ in problem.request.models]
    by_stage: dict[tuple[int, int], list[int]] = {}
    for number, choice in enumerate(problem.choices):
        by_stage.setdefault((choice.case, choice.stage), []).append(number)
    for place, case in enumerate(problem.cases):
        stages = [by_stage.get((place, stage), []) for stage in range(case.stages)]
        limits = _limits(problem.choices, case, stages)
        if limits is None:
            return None
        for limit in limits:
            offers = tuple(
                _offer(problem.choices, supply, stage, most)
                for stage, most in zip(stages, limit, strict=True)
            )
            if all(offer.rates.any() for offer in offers):
                found[case.model].append(Option(offers))
    distinct = [_distinct(mine) for mine in found]
    if max(map(len, distinct)) > MOST_OPTIONS:
        return None
    return tuple(Options(mine) for mine in distinct)


def _limits(
    choices: Sequence[Choice], case: VariantCase, stages: Sequence[Sequence[int]]
) -> list[tuple[float, ...]] | None:
    """The longest latency allowed in each stage, for every combination that no other one contains."""
    if not case.levels or case.budget_ms is None:
        return [(float("inf"),) * case.stages]
    levels = [sorted({choices[number].point.latency_ms for number in stage}) for stage in stages]
    if not all(levels):
        return []
    if np.prod([float(len(level)) for level in levels[:-1]]) > MOST_COMBINATIONS:
        return None
    # The last stage takes the longest latency that the others leave; the first stages rise together.
    best: dict[float, list[tuple[float, ...]]] = {}
    for first in product(*levels[:-1]):
        index = bisect_right(levels[-1], case.budget_ms - sum(first)) - 1
        if index >= 0:
            best.setdefault(levels[-1][index], []).append(first)
    return [
        (*one, last)
        for last, firsts in best.items()
        for one in firsts
        if not any(
            other != one and all(more >= less for more, less in zip(other, one, strict=True))
            for other in firsts
        )
    ]


def _offer(choices: Sequence[Choice], supply: Supply, stage: Sequence[int], longest_ms: float) -> StageOffer:
    rates = np.zeros(len(supply.pools))
    chosen = [-1] * len(supply.pools)
    row_of = {pool: row for row, pool in enumerate(supply.pools)}
    for number in stage:
        choice = choices[number]
        row = row_of[choice.group, choice.profile]
        if choice.point.latency_ms <= longest_ms and choice.rate_rps > rates[row]:
            rates[row] = choice.rate_rps
            chosen[row] = number
    return StageOffer(rates, tuple(chosen))


def _distinct(options: list[Option]) -> list[Option]:
    """Options that differ in what they can do, in their first order."""
    seen: set[tuple[bytes, ...]] = set()
    kept = []
    for option in options:
        key = tuple(stage.rates.tobytes() for stage in option.stages)
        if key not in seen:
            seen.add(key)
            kept.append(option)
    return kept
