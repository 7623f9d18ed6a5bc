"""What one slice can hold: tenants with shares, found for prices of what each stage still needs.

A *fill* is a set of tenants of one slice with their shares, at most one of each stage. Of two tenants of a stage on
one slice the one that gives more could take the other's share, so nothing is lost. What a fill gives to a stage
counts up to what the stage still wants: beyond that a share is better given to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.problem.build import Problem

Vector = NDArray[np.float64]

CLOSE = 1e-9
"""Shares and parts closer than this are equal."""

FIRST = 16
"""Tenants that a slice is filled around, one after the other, for one set of prices."""

Fill = tuple[tuple[int, float], ...]
"""(choice, share) pairs, in the order of the choices."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The choices of equal slices as arrays; `rates` are parts of what their model is to have from a whole slice."""

    choices: NDArray[np.int64]
    stages: NDArray[np.int64]
    rates: Vector
    memory: Vector
    alone: NDArray[np.bool_]
    room_gib: float


class Standing:
    """What has been decided: by stage the part that is still wanted, by case the longest latencies and least share.

    `wanted` are requests/s by model; the others take no part. Least shares under latency limits are those of the
    longest latencies of the tenants that are there, of stages without a tenant of the quickest. `stages` are the
    rows that arrays over stages have.
    """

    def __init__(self, problem: Problem, wanted: Mapping[int, float]) -> None:
        self.problem, self.wanted = problem, wanted
        cases, choices = problem.cases, problem.choices
        owned = [number for number, case in enumerate(cases) if case.model in wanted]
        self.stages = tuple((number, stage) for number in owned for stage in range(cases[number].stages))
        self.missing = np.ones(len(self.stages))
        self.chosen: dict[int, int] = {}
        rows = {stage: row for row, stage in enumerate(self.stages)}
        self.row_of = np.array([rows.get((choice.case, choice.stage), -1) for choice in choices], dtype=int)
        self.rates = np.array([choice.rate_rps / wanted.get(choice.model, np.inf) for choice in choices])
        self._cases = np.array([choice.case for choice in choices], dtype=int)
        self._latency = np.array([choice.point.latency_ms for choice in choices])
        budgets = np.array([np.inf if case.budget_ms is None else case.budget_ms for case in cases])
        self._budgets = budgets[self._cases]
        self._case_of_row = np.array([case for case, _ in self.stages], dtype=int)
        self._longest = np.full(len(self.stages), np.inf)
        np.minimum.at(self._longest, self.row_of[self.row_of >= 0], self._latency[self.row_of >= 0])
        self._least_share = np.ones(len(cases))
        self._open = self.row_of >= 0
        self._renew()

    def pools(self) -> dict[tuple[int, str], Pool]:
        """The choices of the wanted models by the slices they stand on."""
        members: dict[tuple[int, str], list[int]] = {}
        for number, choice in enumerate(self.problem.choices):
            if self.row_of[number] >= 0 and choice.rate_rps > 0:
                members.setdefault((choice.group, choice.profile), []).append(number)
        found = {}
        for key, numbers in members.items():
            here = [self.problem.choices[number] for number in numbers]
            found[key] = Pool(
                np.array(numbers),
                self.row_of[numbers],
                self.rates[numbers],
                np.array([choice.memory_gib for choice in here]),
                np.array([choice.alone for choice in here]),
                self.problem.size_gib(*key),
            )
        return found

    def open(self) -> bool:
        """Whether a model runs no case yet, or a stage of its case still misses something."""
        running = set(self.chosen.values())
        pairs = zip(self.stages, self.missing, strict=True)
        return len(self.chosen) < len(self.wanted) or any(
            missing > 0 for (case, _), missing in pairs if case in running
        )

    def takes(self, fill: Fill) -> bool:
        """Whether all its tenants may still stand there with these shares."""
        return all(share >= self.least[number] - CLOSE for number, share in fill)

    def gives(self, fill: Fill) -> dict[int, float]:
        """By row of `stages` the part that a fill adds of what is still missing."""
        return {
            (row := int(self.row_of[number])): min(
                float(self.missing[row]), share * float(self.rates[number])
            )
            for number, share in fill
        }

    def take(self, fill: Fill, times: int) -> None:
        """Decide for so many slices with this fill."""
        for number, share in fill:
            choice, row = self.problem.choices[number], self.row_of[number]
            self.chosen[choice.model] = choice.case
            self._longest[row] = max(self._longest[row], choice.point.latency_ms)
            self._least_share[choice.case] = min(share, self._least_share[choice.case])
            left = float(self.missing[row]) - times * share * float(self.rates[number])
            self.missing[row] = left if left > CLOSE else 0.0
            for other, case in enumerate(self.problem.cases):
                if case.model == choice.model and other != choice.case:
                    self._open &= self._cases != other
        self._renew()

    def _renew(self) -> None:
        """The least share of every choice, infinite where it may not stand."""
        total = np.bincount(self._case_of_row, self._longest, len(self.problem.cases))
        longest = self._longest[self.row_of]
        with np.errstate(invalid="ignore"):
            # A stage without a choice leaves its case no share at all.
            share = (total[self._cases] - longest + np.maximum(longest, self._latency)) / self._budgets
        fits = self._open & (share <= self._least_share[self._cases] + CLOSE)
        self.least: Vector = np.where(fits, share, np.inf)


def good_fills(pool: Pool, least: Vector, missing: Vector, prices: Vector, most: int) -> Iterator[Fill]:
    """Fills that are worth much at these prices of a whole stage, the dearest first; each around another tenant.

    A slice is filled greedily by worth per share, and once more by worth per share and memory together.
    """
    worth = prices[pool.stages]
    wanted = missing[pool.stages]
    with np.errstate(divide="ignore"):
        full = np.minimum(1.0, np.where(pool.rates > 0, wanted / pool.rates, 1.0))
    full = np.maximum(least, full)
    usable = (least <= 1 + CLOSE) & (wanted > CLOSE) & (worth > 0)
    if not usable.any():
        return
    asked = _Asked(pool, np.minimum(least, 1.0), np.minimum(full, 1.0), wanted, worth, usable, most)
    found: dict[tuple[int, ...], tuple[float, Fill]] = {}
    for heed in (0.0, 1.0):
        size = asked.full + heed * pool.memory / pool.room_gib
        value = np.where(usable, asked.value(asked.full) / np.maximum(size, CLOSE), -1.0)
        for first in _best_of_stages(pool, value):
            total, fill = asked.around(first, heed)
            key = tuple(number for number, _ in fill)
            if key not in found or total > found[key][0]:
                found[key] = (total, fill)
    yield from (fill for _, fill in sorted(found.values(), key=lambda item: (-item[0], item[1])))


def _best_of_stages(pool: Pool, value: Vector) -> Sequence[int]:
    """The best choice of each of the dearest stages."""
    found: dict[int, int] = {}
    for index in np.argsort(-value, kind="stable"):
        if value[index] <= 0 or len(found) == FIRST:
            break
        found.setdefault(int(pool.stages[index]), int(index))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class _Asked:
    """Arrays over the choices of a pool: least and largest sensible share, what is wanted, what it is worth."""

    pool: Pool
    least: Vector
    full: Vector
    wanted: Vector
    worth: Vector
    usable: NDArray[np.bool_]
    most: int

    def value(self, shares: Vector) -> Vector:
        found: Vector = self.worth * np.minimum(self.wanted, self.pool.rates * shares)
        return found

    def around(self, first: int, heed: float) -> tuple[float, Fill]:
        """A slice filled around this tenant; its worth."""
        pool = self.pool
        shares = {first: float(self.full[first])}
        free = 1.0 - shares[first]
        room = pool.room_gib - float(pool.memory[first])
        open_ = self.usable & ~pool.alone
        open_ &= pool.stages != pool.stages[first]
        while not pool.alone[first] and free > CLOSE and len(shares) < self.most:
            fits = open_ & (self.least <= free + CLOSE) & (pool.memory <= room + CLOSE)
            if not fits.any():
                break
            part = np.minimum(self.full, free)
            size = part + heed * pool.memory / pool.room_gib
            index = int(np.argmax(np.where(fits, self.value(part) / np.maximum(size, CLOSE), -1.0)))
            shares[index] = float(part[index])
            free -= shares[index]
            room -= float(pool.memory[index])
            open_ &= pool.stages != pool.stages[index]
        total = sum(
            float(self.worth[index] * min(self.wanted[index], pool.rates[index] * share))
            for index, share in shares.items()
        )
        return total, tuple(sorted((int(pool.choices[index]), share) for index, share in shares.items()))
