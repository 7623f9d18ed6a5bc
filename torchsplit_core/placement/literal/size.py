"""The size of a request's literal program, counted without listing its allocations.

GPUs of one kind are equal to a segment, so sets are counted by their multisets of kinds: a multiset m stands for Π_κ
C(n_κ, m_κ) sets, and two disjoint ones for Π_κ C(n_κ, m_κ) · C(n_κ − m_κ, m'_κ) pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import build_table, count_multisets

MOST_MULTISETS = 2_000
"""Most multisets of kinds: their pairs then take 32 MB. Chosen, not measured."""


@dataclass(frozen=True)
class LiteralSize:
    """Size of the published program. connections: exact if every GPU has a link to every other, else an upper bound."""

    allocations: int
    connections: int
    exact: bool

    @property
    def variables(self) -> int:
        """z and τ of each allocation, e and ρ of each connection, and t."""
        return 2 * self.allocations + 2 * self.connections + 1

    def describe(self) -> str:
        """In words."""
        at_most = "" if self.exact else "at most "
        return (
            f"{self.allocations:,} allocations, {at_most}{self.connections:,} connections and "
            f"{at_most}{self.variables:,} variables"
        )


def literal_size(instance: ProblemInstance) -> LiteralSize | None:
    """The size of the program; None if there are too many multisets to count."""
    if count_multisets(instance) > MOST_MULTISETS:
        return None
    table = build_table(instance, SearchClock.start(float("inf")))
    assert table is not None, "no time limits it"
    layers = instance.layers
    fits = table.values > 0
    fleet = np.bincount(np.array(instance.kinds, dtype=np.int64), minlength=table.counts.shape[1])
    choose = [[float(comb(n, m)) for m in range(n + 1)] for n in fleet.tolist()]
    ways = np.array([_count_sets(choose, row) for row in table.counts.tolist()])
    places = layers - np.arange(1, layers + 1) + 1
    allocations = float(ways @ (fits @ places))
    # Two consecutive lengths have one more position than there are layers left.
    lengths = np.arange(1, layers + 1)
    room = np.maximum(0, layers - lengths[:, None] - lengths + 1).astype(np.float64)
    pairs = fits.astype(np.float64) @ room @ fits.T
    disjoint = np.ones_like(pairs)
    for kind, count in enumerate(fleet.tolist()):
        taken = table.counts[:, kind]
        after = np.array(
            [
                [float(comb(count - first_count, second_count)) for second_count in range(count + 1)]
                for first_count in range(count + 1)
            ]
        )
        disjoint *= after[taken[:, None], taken[None, :]]
    connections = float((pairs * disjoint * ways[:, None]).sum())
    linked = bool((instance.links[~np.eye(len(instance.kinds), dtype=bool)] > 0).all())
    return LiteralSize(round(allocations), round(connections), linked)


def _count_sets(choose: list[list[float]], counts: list[int]) -> float:
    product = 1.0
    for binomials, taken in zip(choose, counts, strict=True):
        product *= binomials[taken]
    return product
