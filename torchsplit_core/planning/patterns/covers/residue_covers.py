"""The cheapest integer cover where many slices are about equally good per request/s: a shortest path over residues.

Rates are rounded to whole units, of which the bulk has some thousands. Whatever steps are taken besides, the count of
the bulk follows, so only the residue of their sum modulo the bulk matters. With rates rounded down its covers are
covers. With rates rounded up, and the price of the roundings taken off, no cover wastes less than the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESOLUTIONS = np.arange(4096, 4608)
"""Units of the bulk's rate, of which those are taken that round the others least where it matters."""

Counts = NDArray[np.int64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class CoverSteps:
    """Steps toward `need` requests/s, which waste `extra` each, and `unit_price` of a request/s beyond the need.

    `rate`: requests/s of a step by item, below 0 where it leaves a slice; `most` of each. The `bulk` wastes nothing.
    """

    rate: Vector
    extra: Vector
    most: Counts
    bulk: int
    unit_price: float
    need: float

    def least_waste(self) -> float:
        """A lower bound of the waste of any steps that reach the need."""
        return max(0.0, float(_Residues.of(self, up=True).waste.min()))

    def cheap_covers(self, keep: int) -> Counts:
        """Counts by (cover, item) of up to `keep` steps that reach the need, with the least waste of their residues.

        Where the others alone reach more than the need, the count of the bulk is below 0.
        """
        paths = _Residues.of(self, up=False)
        residues = np.argsort(paths.waste, kind="stable")[:keep]
        ends = residues[np.isfinite(paths.waste[residues])].tolist()
        return np.array([paths.steps_to(residue) for residue in ends])


@dataclass
class _Residues:
    """The least waste by residue of the units reached, and the number of steps of every item on the way there."""

    units: Counts
    bulk: int
    need: int
    waste: Vector
    taken: list[tuple[int, NDArray[np.int32]]]

    @classmethod
    def of(cls, steps: CoverSteps, *, up: bool) -> _Residues:
        """The residues with the rates in units, each rounded up or down.

        What a rounded step seems to reach it pays for. Where that is more than it wastes, what is left counts for as
        many steps as there may be.
        """
        bulk, need = steps.bulk, steps.need
        parts = steps.rate / steps.rate[bulk] * RESOLUTIONS[:, None]
        rounded = np.ceil(parts - 1e-9) if up else np.floor(parts + 1e-9)
        price = steps.unit_price * float(steps.rate[bulk]) / RESOLUTIONS
        paid = steps.extra - (rounded - parts) * price[:, None]
        lost = -(np.minimum(paid, 0.0) @ steps.most)
        best = int(lost.argmin())
        modulus, units = int(RESOLUTIONS[best]), rounded[best].astype(np.int64)
        extra = np.maximum(paid[best], 0.0)
        exact = need / float(steps.rate[bulk]) * modulus
        target = math.ceil(exact - 1e-9)
        over = ((np.arange(modulus) - target) % modulus + max(target - exact, 0.0)) * float(price[best])
        waste = np.full(modulus, np.inf)
        waste[0] = 0.0
        least, taken = float(over[0]), []
        for item in np.argsort(-extra, kind="stable").tolist():
            if item != bulk and extra[item] <= least:
                waste, numbers = _add_item(waste, int(units[item]) % modulus, float(extra[item]))
                taken.append((item, numbers))
                least = min(least, float((waste + over).min()))
        return cls(units, bulk, target, waste + over - float(lost[best]), taken)

    def steps_to(self, residue: int) -> Counts:
        """The steps that end at this residue."""
        modulus = len(self.waste)
        steps = np.zeros(len(self.units), dtype=np.int64)
        reached = self.need + (residue - self.need) % modulus
        for item, numbers in reversed(self.taken):
            steps[item] = numbers[residue]
            residue = (residue - int(steps[item] * self.units[item])) % modulus
        steps[self.bulk] = (reached - int(steps @ self.units)) // modulus
        return steps


def _add_item(waste: Vector, step: int, extra: float) -> tuple[Vector, NDArray[np.int32]]:
    """The least waste with any number of one more item, and how many by residue.

    Its multiples run in cycles through the residues; once around one no further helps, as no item has a waste below 0.
    """
    modulus = len(waste)
    if step == 0:
        return waste, np.zeros(modulus, dtype=np.int32)
    cycles = math.gcd(step, modulus)
    length = modulus // cycles
    place = (np.arange(cycles)[:, None] + np.arange(2 * length)[None, :] * step) % modulus
    number = np.arange(2 * length)
    level = waste[place] - extra * number
    least = np.minimum.accumulate(level, axis=1)
    origin = np.maximum.accumulate(np.where(level <= least, number, 0), axis=1)
    after, taken = np.empty(modulus), np.empty(modulus, dtype=np.int32)
    after[place[:, length:]] = (least + extra * number)[:, length:]
    taken[place[:, length:]] = (number - origin)[:, length:]
    return after, taken
