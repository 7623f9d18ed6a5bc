"""Ways to divide the slices of a GPU among models that must be on it together: the columns of a co-located set.

A division gives every member of the set slices by pool, at least one; the GPU's other slices stay open to all models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector

MAX_DIVISIONS = 20_000
"""Divisions above which a set is not searched: to price them takes too long."""


@dataclass(frozen=True)
class GpuDivisions:
    """`slices[division, member, pool]` of one GPU, the `rates[division, member]` they give, and the layouts that fit.

    `totals[division, pool]` sums over members. `fits[division, column]`: whether the layout column has these slices.
    """

    slices: Counts
    totals: Vector
    rates: Vector
    fits: NDArray[np.bool_]


def enumerate_divisions(capacity: FleetCapacity, rates: Vector) -> GpuDivisions | None:
    """The divisions of a set whose `rates[member, pool]` are those of one slice (0: unusable); None: too many."""
    divisions: dict[tuple[tuple[int, ...], ...], None] = {}
    for column in range(len(capacity.columns)):
        for division in divisions_of(capacity.slices[:, column], rates):
            divisions[division] = None
            if len(divisions) > MAX_DIVISIONS:
                return None
    # A division lists its slices by pool and member.
    slices = np.array(list(divisions), dtype=np.int64).reshape(-1, len(capacity.pools), len(rates))
    slices = slices.transpose(0, 2, 1)
    totals = slices.sum(axis=1)
    fits = (totals[:, :, None] <= capacity.slices[None]).all(axis=1)
    return GpuDivisions(
        slices, totals.astype(np.float64), np.einsum("smp,mp->sm", slices.astype(np.float64), rates), fits
    )


def divisions_of(slices: Counts, rates: Vector) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The divisions of a GPU with these slices by pool, each as slices by pool and member."""
    nothing = (0,) * len(rates)
    used = np.flatnonzero(slices).tolist()
    per_pool = [list(_ways(int(slices[pool]), rates[:, pool] > 0)) for pool in used]
    for chosen in product(*per_pool):
        if chosen and all(map(any, zip(*chosen, strict=True))):
            division = [nothing] * len(slices)
            for pool, counts in zip(used, chosen, strict=True):
                division[pool] = counts
            yield tuple(division)


def _ways(count: int, usable: Sequence[bool] | NDArray[np.bool_]) -> Iterator[tuple[int, ...]]:
    """Every way to give up to `count` equal slices to members, none to those that cannot use them."""
    if not len(usable):
        yield ()
        return
    for taken in range(count + 1 if usable[0] else 1):
        for rest in _ways(count - taken, usable[1:]):
            yield (taken, *rest)
