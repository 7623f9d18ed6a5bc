"""Slice patterns, generated at prices of what each stage still needs.

A *pattern* is a set of tenants of one slice with their shares, at most one of each stage: of two tenants of a stage on
one slice, the one with the higher rate could take the other's share. What a pattern gives to a stage counts up to what
the stage still needs; more is better given to another stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.problem.build import Problem

Vector = NDArray[np.float64]

SHARE_TOLERANCE = 1e-9
"""Shares and parts closer than this are equal."""

MAX_SEEDS = 16
"""Tenants around which a slice is filled, one after the other, at one set of prices."""

SlicePattern = tuple[tuple[int, float], ...]
"""(choice, share) pairs, in the order of the choices."""


@dataclass(frozen=True, slots=True)
class SliceClass:
    """The choices of equal slices as arrays; `rates` of a whole slice are parts of their model's target."""

    choices: NDArray[np.int64]
    stages: NDArray[np.int64]
    rates: Vector
    memory: Vector
    needs_own_slice: NDArray[np.bool_]
    memory_gib: float


class PartialPlan:
    """The fixed part of a plan: the missing part by stage, the longest latencies and least share by case.

    `targets`: requests/s by model; other models are ignored. Least shares under latency limits follow from the longest
    latencies of the assigned tenants, for stages without one from its quickest. `stages` are the rows of arrays over
    stages.
    """

    def __init__(self, problem: Problem, targets: Mapping[int, float]) -> None:
        self.problem, self.targets = problem, targets
        cases, choices = problem.cases, problem.choices
        target_cases = [number for number, case in enumerate(cases) if case.model in targets]
        self.stages = tuple(
            (number, stage) for number in target_cases for stage in range(cases[number].stages)
        )
        self.missing = np.ones(len(self.stages))
        self.chosen_cases: dict[int, int] = {}
        rows = {stage: row for row, stage in enumerate(self.stages)}
        self.row_of = np.array([rows.get((choice.case, choice.stage), -1) for choice in choices], dtype=int)
        self.rates = np.array([choice.rate_rps / targets.get(choice.model, np.inf) for choice in choices])
        self._cases = np.array([choice.case for choice in choices], dtype=int)
        self._latency = np.array([choice.point.latency_ms for choice in choices])
        budgets = np.array([np.inf if case.budget_ms is None else case.budget_ms for case in cases])
        self._budgets = budgets[self._cases]
        self._case_of_row = np.array([case for case, _ in self.stages], dtype=int)
        self._longest = np.full(len(self.stages), np.inf)
        np.minimum.at(self._longest, self.row_of[self.row_of >= 0], self._latency[self.row_of >= 0])
        self._least_share = np.ones(len(cases))
        self._open = self.row_of >= 0
        self._update_least_shares()

    def slice_classes(self) -> dict[tuple[int, str], SliceClass]:
        """The choices of the wanted models by slice class."""
        members: dict[tuple[int, str], list[int]] = {}
        for number, choice in enumerate(self.problem.choices):
            if self.row_of[number] >= 0 and choice.rate_rps > 0:
                members.setdefault((choice.group, choice.profile), []).append(number)
        classes = {}
        for key, numbers in members.items():
            choices = [self.problem.choices[number] for number in numbers]
            classes[key] = SliceClass(
                np.array(numbers),
                self.row_of[numbers],
                self.rates[numbers],
                np.array([choice.memory_gib for choice in choices]),
                np.array([choice.needs_own_slice for choice in choices]),
                self.problem.slice_memory_gib(*key),
            )
        return classes

    def is_incomplete(self) -> bool:
        """Whether a model runs no case yet, or a stage of its case is still short."""
        running = set(self.chosen_cases.values())
        pairs = zip(self.stages, self.missing, strict=True)
        return len(self.chosen_cases) < len(self.targets) or any(
            missing > 0 for (case, _), missing in pairs if case in running
        )

    def admits(self, pattern: SlicePattern) -> bool:
        """Whether all its tenants are still allowed with these shares."""
        return all(share >= self.least_shares[number] - SHARE_TOLERANCE for number, share in pattern)

    def contributions(self, pattern: SlicePattern) -> dict[int, float]:
        """By row of `stages`, how much of the missing part a pattern adds."""
        return {
            (row := int(self.row_of[number])): min(
                float(self.missing[row]), share * float(self.rates[number])
            )
            for number, share in pattern
        }

    def commit(self, pattern: SlicePattern, times: int) -> None:
        """Fix this many slices with this pattern."""
        for number, share in pattern:
            choice, row = self.problem.choices[number], self.row_of[number]
            self.chosen_cases[choice.model] = choice.case
            self._longest[row] = max(self._longest[row], choice.point.latency_ms)
            self._least_share[choice.case] = min(share, self._least_share[choice.case])
            left = float(self.missing[row]) - times * share * float(self.rates[number])
            self.missing[row] = left if left > SHARE_TOLERANCE else 0.0
            for other, case in enumerate(self.problem.cases):
                if case.model == choice.model and other != choice.case:
                    self._open &= self._cases != other
        self._update_least_shares()

    def _update_least_shares(self) -> None:
        """The least share of every choice, infinite if it is not allowed."""
        total = np.bincount(self._case_of_row, self._longest, len(self.problem.cases))
        longest = self._longest[self.row_of]
        with np.errstate(invalid="ignore"):
            # A stage without a choice excludes its case.
            share = (total[self._cases] - longest + np.maximum(longest, self._latency)) / self._budgets
        fits = self._open & (share <= self._least_share[self._cases] + SHARE_TOLERANCE)
        self.least_shares: Vector = np.where(fits, share, np.inf)


def price_slice_patterns(
    slice_class: SliceClass, least: Vector, missing: Vector, prices: Vector, most: int
) -> Iterator[SlicePattern]:
    """Patterns of high value at these prices of a whole stage, the best first, each around another tenant.

    A slice is filled greedily by value per share, and again by value per share and memory together.
    """
    worth = prices[slice_class.stages]
    wanted = missing[slice_class.stages]
    with np.errstate(divide="ignore"):
        full = np.minimum(1.0, np.where(slice_class.rates > 0, wanted / slice_class.rates, 1.0))
    full = np.maximum(least, full)
    usable = (least <= 1 + SHARE_TOLERANCE) & (wanted > SHARE_TOLERANCE) & (worth > 0)
    if not usable.any():
        return
    pricing = _PricingProblem(
        slice_class, np.minimum(least, 1.0), np.minimum(full, 1.0), wanted, worth, usable, most
    )
    best_by_tenants: dict[tuple[int, ...], tuple[float, SlicePattern]] = {}
    for memory_weight in (0.0, 1.0):
        size = pricing.full + memory_weight * slice_class.memory / slice_class.memory_gib
        value = np.where(usable, pricing.value(pricing.full) / np.maximum(size, SHARE_TOLERANCE), -1.0)
        for seed in _seeds(slice_class, value):
            total, pattern = pricing.fill_around(seed, memory_weight)
            key = tuple(number for number, _ in pattern)
            if key not in best_by_tenants or total > best_by_tenants[key][0]:
                best_by_tenants[key] = (total, pattern)
    yield from (
        pattern for _, pattern in sorted(best_by_tenants.values(), key=lambda item: (-item[0], item[1]))
    )


def _seeds(slice_class: SliceClass, value: Vector) -> Sequence[int]:
    """The best choice of each of the dearest stages."""
    best_by_stage: dict[int, int] = {}
    for index in np.argsort(-value, kind="stable"):
        if value[index] <= 0 or len(best_by_stage) == MAX_SEEDS:
            break
        best_by_stage.setdefault(int(slice_class.stages[index]), int(index))
    return list(best_by_stage.values())


@dataclass(frozen=True, slots=True)
class _PricingProblem:
    """Arrays over the choices of a pool: least share, largest useful share, missing part, and value."""

    slice_class: SliceClass
    least: Vector
    full: Vector
    wanted: Vector
    worth: Vector
    usable: NDArray[np.bool_]
    most: int

    def value(self, shares: Vector) -> Vector:
        values: Vector = self.worth * np.minimum(self.wanted, self.slice_class.rates * shares)
        return values

    def fill_around(self, seed: int, memory_weight: float) -> tuple[float, SlicePattern]:
        """Fill a slice around this tenant; returns its value too."""
        slice_class = self.slice_class
        shares = {seed: float(self.full[seed])}
        free = 1.0 - shares[seed]
        room = slice_class.memory_gib - float(slice_class.memory[seed])
        open_ = self.usable & ~slice_class.needs_own_slice
        open_ &= slice_class.stages != slice_class.stages[seed]
        while not slice_class.needs_own_slice[seed] and free > SHARE_TOLERANCE and len(shares) < self.most:
            fits = (
                open_
                & (self.least <= free + SHARE_TOLERANCE)
                & (slice_class.memory <= room + SHARE_TOLERANCE)
            )
            if not fits.any():
                break
            part = np.minimum(self.full, free)
            size = part + memory_weight * slice_class.memory / slice_class.memory_gib
            index = int(np.argmax(np.where(fits, self.value(part) / np.maximum(size, SHARE_TOLERANCE), -1.0)))
            shares[index] = float(part[index])
            free -= shares[index]
            room -= float(slice_class.memory[index])
            open_ &= slice_class.stages != slice_class.stages[index]
        total = sum(
            float(self.worth[index] * min(self.wanted[index], slice_class.rates[index] * share))
            for index, share in shares.items()
        )
        return total, tuple(
            sorted((int(slice_class.choices[index]), share) for index, share in shares.items())
        )
