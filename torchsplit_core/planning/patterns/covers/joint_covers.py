"""Cheapest GPUs that serve a co-located set: whole numbers of divisions that give every member what it needs.

The linear program min cost · z, Σ_d rates[d, m] · z[d] ≥ need[m], z ≥ 0 bounds the cost, and has at most as many
divisions in use as members. Whole covers round it down, take some GPUs away, and complete it with the cheapest
divisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, Vector
from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run

CANDIDATES = {1: 400, 2: 80, 3: 20}
"""By the number of GPUs that complete a cover, the divisions of least reduced cost that are tried for them."""

TAKEN_AWAY = 2
"""Most GPUs that are taken away from the rounded linear program before it is completed."""

SLACK = 1e-9
"""Part of what is needed that may be missing, for sums that meet it exactly."""


@dataclass(frozen=True)
class JointCover:
    """GPUs by division (index, count), ascending, and their cost."""

    gpus: tuple[tuple[int, int], ...]
    cost: float


@dataclass(frozen=True)
class LinearCover:
    """The linear program's solution: GPUs by division, the price of a unit of each member's rate, and the cost."""

    amounts: Vector
    duals: Vector
    cost: float

    def least(self, costs: Vector, rates: Vector, need: Vector) -> float:
        """What covers cost at least: arithmetic from the duals, lowered until no division costs less than its worth."""
        worth = rates @ self.duals
        lowered = min(1.0, float((costs[worth > 0] / worth[worth > 0]).min(initial=1.0)))
        return float(self.duals @ need) * lowered * (1 - 1e-9)


def linear_cover(costs: Vector, rates: Vector, need: Vector) -> LinearCover | None:
    """The cheapest parts of GPUs; `rates` is (divisions, members). None if the members cannot be served."""
    division, member = np.nonzero(rates)
    highs = load_program(
        "planner's program of a co-located set",
        csc_from_entries(rates[division, member], member, division, (len(need), len(costs))),
        costs,
        columns=(np.zeros(len(costs)), np.full(len(costs), INF)),
        rows=(need, np.full(len(need), INF)),
    )
    if run(highs) != "optimal":
        return None
    solution = highs.getSolution()
    amounts = np.array(solution.col_value)
    return LinearCover(amounts, np.maximum(np.array(solution.row_dual), 0.0), float(costs @ amounts))


def whole_covers(
    costs: Vector, rates: Vector, need: Vector, linear: LinearCover, keep: int
) -> list[JointCover]:
    """Up to `keep` cheap covers, cheapest first; at least one."""
    by_waste = np.argsort(costs - rates @ linear.duals, kind="stable")
    completions = []
    for count, most in CANDIDATES.items():
        chosen = by_waste[:most][_multisets(min(most, len(costs)), count)]
        completions.append((chosen, costs[chosen].sum(axis=1), rates[chosen].sum(axis=1)))
    tolerance = need * SLACK
    covers: dict[tuple[tuple[int, int], ...], float] = {}
    _add_cover(covers, np.ceil(linear.amounts - 1e-9).astype(np.int64), (), costs)
    for base in _rounded_down(linear.amounts):
        used = np.flatnonzero(base)
        missing = need - base[used] @ rates[used] - tolerance
        if (missing <= 0).all():
            _add_cover(covers, base, (), costs)
            continue
        for chosen, chosen_costs, chosen_rates in completions:
            enough = np.flatnonzero((chosen_rates >= missing).all(axis=1))
            count = min(keep, len(enough))
            if not count or (chosen.shape[1] > 2 and len(covers) > keep):
                continue
            for number in enough[np.argpartition(chosen_costs[enough], count - 1)[:count]].tolist():
                _add_cover(covers, base, chosen[number], costs)
    ranked = sorted(covers.items(), key=lambda item: item[1])
    return [JointCover(gpus, cost) for gpus, cost in ranked[:keep]]


@lru_cache(maxsize=16)
def _multisets(size: int, count: int) -> Counts:
    """The multisets of `count` of the numbers below `size`, one a row."""
    return np.array(list(combinations_with_replacement(range(size), count)), dtype=np.int64)


def _rounded_down(amounts: Vector) -> Iterator[Counts]:
    """The amounts rounded down, then with one or more GPUs taken away."""
    base = np.floor(amounts + 1e-9).astype(np.int64)
    used = np.flatnonzero(base).tolist()
    for count in range(TAKEN_AWAY + 1):
        for chosen in combinations_with_replacement(used, count):
            less = base.copy()
            np.subtract.at(less, list(chosen), 1)
            if (less >= 0).all():
                yield less


def _add_cover(
    covers: dict[tuple[tuple[int, int], ...], float],
    base: Counts,
    more: Counts | tuple[int, ...],
    costs: Vector,
) -> None:
    counts = {division: int(base[division]) for division in np.flatnonzero(base).tolist()}
    for division in more:
        counts[int(division)] = counts.get(int(division), 0) + 1
    covers[tuple(sorted(counts.items()))] = sum(
        float(costs[division]) * count for division, count in counts.items()
    )
