"""Fleets that fall into components of faster links: each divided exactly, with a bound for pipelines across them.

Let no link between two components be above L. A pipeline of a higher value lies within one component, or is one
segment. Price the GPUs as in capacity.py: pipelines across components are worth what their GPUs cost and a surplus
at most. In a component the best division counts what its pipelines are worth beyond what their GPUs cost. For k
pipelines across components the fleet's price, the best sum of these, and k surpluses, bound the whole at any prices,
the surplus below 0 where prices are high; the largest bound over k holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import Found, Instance, Segments
from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses, symmetry_classes
from torchsplit_core.placement.replicas.capacity import capacity
from torchsplit_core.placement.replicas.division_lattice import DivisionLattice
from torchsplit_core.placement.replicas.dual_prices import DualPrices
from torchsplit_core.placement.replicas.exact import Divider
from torchsplit_core.placement.replicas.pipelines import back, best_single, part_of, rows_of
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.table import Table

_VECTORS, _PAIRS = 20_000, 1_500_000
"""The largest lattice of one component (division_lattice.py): a fifth and a quarter of what a whole fleet may have.
Chosen, not measured."""

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0)
"""Multiples of the prices at which pipelines across components have no surplus. Many pipelines across components are
bounded best by low prices, few by high ones, at which each of them is worth less than it costs."""

_SINGLE_S = 2.0
"""Seconds for the best single pipeline of a component. Chosen, not measured."""


@dataclass(frozen=True)
class _Component:
    """gpus: ascending. divider: shared by components that are alike, which number their GPUs in this order."""

    gpus: list[int]
    divider: Divider


class FastLinkComponents:
    """The components of a fleet under its faster links, and what is known of each."""

    def __init__(
        self, instance: Instance, table: Table, level: float, most: int, best: float, clock: Clock
    ) -> None:
        """level: the fastest value of a pipeline across components."""
        self._instance, self._most = instance, most
        self._dual = DualPrices(instance, table, level, clock)
        self._prices = capacity(instance, table, most, level, clock).prices
        self._fleet = np.bincount(np.array(instance.kinds), minlength=len(self._prices))
        known: dict[tuple[tuple[int, ...], bytes], Divider] = {}
        self._components: list[_Component] = []
        for gpus in _parts(instance, level):
            part = part_of(instance, gpus)
            key = (part.kinds, part.links.tobytes())
            if key not in known:
                known[key] = _divider(part, rows_of(table, part), best, clock)
            self._components.append(_Component(gpus, known[key]))

    def bound(self) -> tuple[float, list[tuple[Divider, list[int]]]]:
        """A bound on the whole, and what is to be searched to lower it.

        For each number of pipelines across components the prices are those of the least bound; the number is the one of
        the largest.
        """
        bounds = np.full((len(_SHARES), self._most + 1), np.inf)
        chosen = []
        for row, share in enumerate(_SHARES):
            prices = self._prices * share
            surplus = self._dual.surplus(prices)[0]
            sums = [component.divider.sums(self._limit(component), prices) for component in self._components]
            inside, choices = _combine(sums, self._most)
            chosen.append((prices, choices))
            across = np.arange(self._most + 1)
            inside = inside[np.minimum(self._most - across, len(inside) - 1)]
            bounds[row] = float(prices @ self._fleet) + inside + across * surplus
        count = int(np.argmax(bounds.min(axis=0)))
        row = int(np.argmin(bounds[:, count]))
        prices, choices = chosen[row]
        counts = _traced(choices, min(self._most - count, len(choices[-1]) - 1))
        wanted: dict[Divider, set[int]] = {}
        for component, own in zip(self._components, counts, strict=True):
            wanted.setdefault(component.divider, set()).update(component.divider.wanted(own, prices)[1])
        unknown = [(one, sorted(indices, reverse=True)) for one, indices in wanted.items() if indices]
        return float(bounds[row, count]), unknown

    def best(self) -> tuple[Segments, ...]:
        """The best pipelines within components that are known."""
        sums = [component.divider.known_sums(self._limit(component)) for component in self._components]
        by_count, choices = _combine(sums, self._most)
        counts = _traced(choices, int(np.argmax(by_count)))
        return tuple(
            back(one, component.gpus)
            for component, count in zip(self._components, counts, strict=True)
            for one in component.divider.best(count)[1]
        )

    def _limit(self, component: _Component) -> int:
        return min(self._most, len(component.gpus))


def level_of(instance: Instance, table: Table, best: float) -> float | None:
    """The lowest value at which all components are small enough to be divided exactly, and some has several GPUs.

    None where that is not below `best`, the highest value of a pipeline.
    """
    off = ~np.eye(len(instance.kinds), dtype=bool)
    several = table.counts.sum(axis=1) > 1
    alone = float(table.values[several, instance.layers - 1].max(initial=0.0))
    levels = np.unique(np.concatenate([[alone], instance.links[off]]))
    levels = levels[(levels >= alone) & (levels < best)]
    low, high = -1, len(levels)
    while low + 1 < high:
        middle = (low + high) // 2
        if all(_small(part_of(instance, gpus)) for gpus in _parts(instance, float(levels[middle]))):
            high = middle
        else:
            low = middle
    if high == len(levels) or all(len(gpus) == 1 for gpus in _parts(instance, float(levels[high]))):
        return None
    return float(levels[high])


def _parts(instance: Instance, level: float) -> list[list[int]]:
    """GPUs joined by links above the level."""
    every = np.arange(len(instance.kinds))
    found = components(instance.links, every, float(np.nextafter(level, np.inf)))
    return [component.gpus.tolist() for component in found]


def _small(part: Instance) -> SymmetryClasses | None:
    classes = symmetry_classes(part, _VECTORS)
    return classes if classes is not None and DivisionLattice(classes).pairs() <= _PAIRS else None


def _divider(part: Instance, table: Table, best: float, clock: Clock) -> Divider:
    classes = _small(part)
    assert classes is not None, "a component was found small before"
    divider = Divider(part, table, classes, DivisionLattice(classes), clock)
    found = best_single(part, clock.part(_SINGLE_S).left_s())
    divider.begin(Found(found.value, min(found.bound, best), found.proven, found.segments, {}))
    return divider


def _combine(sums: list[np.ndarray], most: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The best sum for 0 to `most` pipelines in all, and after each component how many of them it has."""
    total, choices = np.zeros(1), []
    for own in sums:
        size = min(most + 1, len(total) + len(own) - 1)
        table = np.full((size, len(own)), -np.inf)
        for count in range(len(own)):
            rows = np.arange(count, min(size, count + len(total)))
            table[rows, count] = total[rows - count] + own[count]
        choices.append(table.argmax(axis=1))
        total = table.max(axis=1)
    return total, choices


def _traced(choices: list[np.ndarray], count: int) -> list[int]:
    counts = []
    for choice in reversed(choices):
        counts.append(int(choice[count]))
        count -= counts[-1]
    return counts[::-1]
