"""Every way a model can run, as stages with requests/s by pool, from which patterns are made."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.problem.latency_cases import VariantCase

MOST_COMBINATIONS = 50_000
"""Combinations of longest latencies that are examined for a variant of several stages."""

MOST_OPTIONS = 1500
"""Options of one model."""


@dataclass(frozen=True)
class StageOption:
    """Requests/s of one slice by pool (0: unusable), and the index of the choice that gives it (-1: none).

    `least_after_loss_rps`: what all slices but one of the highest rate must give, requests/s; 0: nothing.
    """

    rates: Vector
    choices: tuple[int, ...]
    least_after_loss_rps: float = 0.0


@dataclass(frozen=True)
class ModelOption:
    """One way to run a model; the full throughput needs all its stages."""

    stages: tuple[StageOption, ...]


class ModelOptions:
    """The options of one model, with arrays of their linear costs."""

    def __init__(self, options: Sequence[ModelOption]) -> None:
        self.options = tuple(options)
        depth = max((len(option.stages) for option in options), default=0)
        width = len(options[0].stages[0].rates) if options else 0
        # A missing stage costs nothing: its slices have infinite rates.
        inverse = np.zeros((len(options), depth, width))
        for number, option in enumerate(options):
            for stage, stage_option in enumerate(option.stages):
                with np.errstate(divide="ignore"):
                    inverse[number, stage] = 1.0 / stage_option.rates
        self._inverse = inverse

    def unit_costs(self, prices: Vector) -> Vector:
        """For each option the cost of a request/s at these prices (all above 0), with divisible slices."""
        if not self.options:
            return np.zeros(0)
        return (self._inverse * prices).min(axis=2).sum(axis=1)  # type: ignore[no-any-return]

    def moved(self, start: int, width: int) -> ModelOptions:
        """The same options where their pools are those from `start` on, of `width` in all."""
        return ModelOptions([
            ModelOption(tuple(_moved_stage(stage, start, width) for stage in option.stages))
            for option in self.options
        ])  # fmt: skip


def _moved_stage(stage: StageOption, start: int, width: int) -> StageOption:
    rates, choices = np.zeros(width), [-1] * width
    rates[start : start + len(stage.rates)] = stage.rates
    choices[start : start + len(stage.rates)] = stage.choices
    return replace(stage, rates=rates, choices=tuple(choices))


def build_options(
    problem: Problem, capacity: FleetCapacity, least_after_loss: Sequence[float] = ()
) -> tuple[ModelOptions, ...] | None:
    """The options of every model; None if a model has too many combinations of latencies.

    `least_after_loss`: for every model the requests/s that each stage must have without one of its slices; or none.
    """
    by_model: list[list[ModelOption]] = [[] for _ in problem.request.models]
    by_stage: dict[tuple[int, int], list[int]] = {}
    for number, choice in enumerate(problem.choices):
        by_stage.setdefault((choice.case, choice.stage), []).append(number)
    for case_number, case in enumerate(problem.cases):
        stages = [by_stage.get((case_number, stage), []) for stage in range(case.stages)]
        limits = _latency_limits(problem.choices, case, stages)
        if limits is None:
            return None
        for limit in limits:
            stage_options = tuple(
                _stage_option(
                    problem.choices,
                    capacity,
                    stage,
                    most,
                    least_after_loss[case.model] if least_after_loss else 0.0,
                )
                for stage, most in zip(stages, limit, strict=True)
            )
            if all(stage_option.rates.any() for stage_option in stage_options):
                by_model[case.model].append(ModelOption(stage_options))
    distinct = [_distinct_options(model_options) for model_options in by_model]
    if max(map(len, distinct)) > MOST_OPTIONS:
        return None
    return tuple(ModelOptions(model_options) for model_options in distinct)


def _latency_limits(
    choices: Sequence[Choice], case: VariantCase, stages: Sequence[Sequence[int]]
) -> list[tuple[float, ...]] | None:
    """The longest latencies of the stages, for every combination that no other contains."""
    if not case.has_latency_levels or case.budget_ms is None:
        return [(float("inf"),) * case.stages]
    levels = [sorted({choices[number].point.latency_ms for number in stage}) for stage in stages]
    if not all(levels):
        return []
    if np.prod([float(len(level)) for level in levels[:-1]]) > MOST_COMBINATIONS:
        return None
    # The last stage takes the longest latency that the others leave; the earlier stages rise together.
    best: dict[float, list[tuple[float, ...]]] = {}
    for first in product(*levels[:-1]):
        index = bisect_right(levels[-1], case.budget_ms - sum(first)) - 1
        if index >= 0:
            best.setdefault(levels[-1][index], []).append(first)
    return [
        (*combination, last)
        for last, firsts in best.items()
        for combination in firsts
        if not any(
            other != combination and all(more >= less for more, less in zip(other, combination, strict=True))
            for other in firsts
        )
    ]


def _stage_option(
    choices: Sequence[Choice],
    capacity: FleetCapacity,
    stage: Sequence[int],
    longest_ms: float,
    least_after_loss_rps: float,
) -> StageOption:
    rates = np.zeros(len(capacity.pools))
    chosen = [-1] * len(capacity.pools)
    row_of = {pool: row for row, pool in enumerate(capacity.pools)}
    for number in stage:
        choice = choices[number]
        row = row_of[choice.group, choice.profile]
        if choice.point.latency_ms <= longest_ms and choice.rate_rps > rates[row]:
            rates[row] = choice.rate_rps
            chosen[row] = number
    return StageOption(rates, tuple(chosen), least_after_loss_rps)


def _distinct_options(options: list[ModelOption]) -> list[ModelOption]:
    """Options that differ in their capabilities, in their original order."""
    seen: set[tuple[bytes, ...]] = set()
    distinct = []
    for option in options:
        key = tuple(stage.rates.tobytes() for stage in option.stages)
        if key not in seen:
            seen.add(key)
            distinct.append(option)
    return distinct
