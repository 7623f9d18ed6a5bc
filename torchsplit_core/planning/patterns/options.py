"""Every way a model can run, as stages with requests/s by pool: what the patterns are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from torchsplit_core.planning.expand import Choice, Problem, VariantCase
from torchsplit_core.planning.patterns.supply import Supply, Vector

MOST_COMBINATIONS = 512
"""Combinations of longest latencies that are looked at for one variant of several stages."""


@dataclass(frozen=True)
class StageOffer:
    """Requests/s of one slice by pool (0: unusable), and the choice (its place) that gives it (-1: none)."""

    rates: Vector
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Option:
    """One way to run a model: all its stages are needed at the full throughput."""

    stages: tuple[StageOffer, ...]


def options_of(problem: Problem, supply: Supply) -> tuple[tuple[Option, ...], ...] | None:
    """The options of every model; None where a variant has too many combinations of latencies."""
    found: list[list[Option]] = [[] for _ in problem.request.models]
    by_stage: dict[tuple[int, int, int], list[int]] = {}
    for number, choice in enumerate(problem.choices):
        by_stage.setdefault((choice.model, choice.variant, choice.stage), []).append(number)
    for case in problem.cases:
        stages = [by_stage.get((case.model, case.variant, stage), []) for stage in range(case.stages)]
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
    return tuple(tuple(_distinct(mine)) for mine in found)


def _limits(
    choices: Sequence[Choice], case: VariantCase, stages: Sequence[Sequence[int]]
) -> list[tuple[float, ...]] | None:
    """The longest latency allowed in each stage, for every combination that no other one contains."""
    if not case.levels or case.budget_ms is None:
        return [(float("inf"),) * case.stages]
    levels = [sorted({choices[number].point.latency_ms for number in stage}) for stage in stages]
    if np.prod([float(len(level)) for level in levels]) > MOST_COMBINATIONS:
        return None
    fitting = [combined for combined in product(*levels) if sum(combined) <= case.budget_ms]
    return [
        one
        for one in fitting
        if not any(
            other != one and all(more >= less for more, less in zip(other, one, strict=True))
            for other in fitting
        )
    ]


def _offer(choices: Sequence[Choice], supply: Supply, stage: Sequence[int], longest_ms: float) -> StageOffer:
    rates = np.zeros(len(supply.pools))
    chosen = [-1] * len(supply.pools)
    place = {pool: row for row, pool in enumerate(supply.pools)}
    for number in stage:
        choice = choices[number]
        row = place[choice.group, choice.profile]
        if choice.point.latency_ms <= longest_ms and choice.point.throughput_rps > rates[row]:
            rates[row] = choice.point.throughput_rps
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
