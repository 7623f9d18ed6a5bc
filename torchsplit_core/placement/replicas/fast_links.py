"""Fleets with components of faster links: each divided exactly, with a bound for pipelines across them.

Let no link between two components exceed L. A pipeline of a higher value lies within one component, or is one segment.
Price the GPUs as in capacity_bound: a pipeline across components has at most the value of its GPUs' cost plus a
surplus. In a component the best division counts the value of its pipelines minus their GPUs' cost. For k pipelines
across components, the fleet's price plus the best sum of these plus k surpluses (negative at high prices) bounds the
whole at any prices; the largest bound over k holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance, SearchResult, Segments
from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses, symmetry_classes
from torchsplit_core.placement.replicas.capacity_bound import capacity_bound
from torchsplit_core.placement.replicas.dual_prices import DualPrices
from torchsplit_core.placement.replicas.fleet_partition import FleetPartitioner
from torchsplit_core.placement.replicas.partition_lattice import PartitionLattice
from torchsplit_core.placement.replicas.pipelines import (
    best_single,
    restrict_table,
    sub_instance,
    to_fleet_indices,
)
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.segment_table import SegmentTable

_VECTORS, _PAIRS = 20_000, 1_500_000
"""The largest lattice of one component (partition_lattice.py): a fifth and a quarter of a whole fleet's. Chosen, not
measured."""

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0, 6.0)
"""Multiples of the prices at which pipelines across components have no surplus. Low prices bound many pipelines across
components best, high ones few: there each costs more than its value."""

_SINGLE_S = 2.0
"""Seconds for the best single pipeline of a component. Chosen, not measured."""


@dataclass(frozen=True)
class _FastComponent:
    """gpus: ascending. divider: shared by components that are alike, which number their GPUs in this order."""

    gpus: list[int]
    partitioner: FleetPartitioner


class FastLinkComponents:
    """The components of a fleet under its faster links, and the results for each."""

    def __init__(
        self,
        instance: ProblemInstance,
        table: SegmentTable,
        level: float,
        most: int,
        best: float,
        clock: SearchClock,
    ) -> None:
        """level: the largest value of a pipeline across components."""
        self._instance, self._most = instance, most
        self._dual = DualPrices(instance, table, level, clock)
        self._prices = capacity_bound(instance, table, most, level, clock).prices
        self._fleet = np.bincount(np.array(instance.kinds), minlength=len(self._prices))
        known: dict[tuple[tuple[int, ...], bytes], FleetPartitioner] = {}
        self._components: list[_FastComponent] = []
        for gpus in _fast_components(instance, level):
            part = sub_instance(instance, gpus)
            key = (part.kinds, part.links.tobytes())
            if key not in known:
                known[key] = _component_partitioner(part, restrict_table(table, part), best, clock)
            self._components.append(_FastComponent(gpus, known[key]))

    def bound(self) -> tuple[float, list[tuple[FleetPartitioner, list[int]]]]:
        """A bound on the whole, and the searches that can lower it.

        The prices are those of the least bound for each number of pipelines across components; the number is that of
        the largest.
        """
        bounds = np.full((len(_SHARES), self._most + 1), np.inf)
        chosen = []
        for row, share in enumerate(_SHARES):
            prices = self._prices * share
            surplus = self._dual.surplus(prices)[0]
            sums = [
                component.partitioner.bound_sums(self._limit(component), prices)
                for component in self._components
            ]
            inside, choices = _combine_sums(sums, self._most)
            chosen.append((prices, choices))
            across = np.arange(self._most + 1)
            inside = inside[np.minimum(self._most - across, len(inside) - 1)]
            bounds[row] = float(prices @ self._fleet) + inside + across * surplus
        count = int(np.argmax(bounds.min(axis=0)))
        row = int(np.argmin(bounds[:, count]))
        prices, choices = chosen[row]
        counts = _backtrack_counts(choices, min(self._most - count, len(choices[-1]) - 1))
        unresolved: dict[FleetPartitioner, set[int]] = {}
        for component, count_inside in zip(self._components, counts, strict=True):
            unresolved.setdefault(component.partitioner, set()).update(
                component.partitioner.unresolved_parts(count_inside, prices)[1]
            )
        unknown = [
            (partitioner, sorted(indices, reverse=True))
            for partitioner, indices in unresolved.items()
            if indices
        ]
        return float(bounds[row, count]), unknown

    def best_known(self) -> tuple[Segments, ...]:
        """The best known pipelines within components."""
        sums = [component.partitioner.known_sums(self._limit(component)) for component in self._components]
        by_count, choices = _combine_sums(sums, self._most)
        counts = _backtrack_counts(choices, int(np.argmax(by_count)))
        return tuple(
            to_fleet_indices(pipeline, component.gpus)
            for component, count in zip(self._components, counts, strict=True)
            for pipeline in component.partitioner.best_known(count)[1]
        )

    def _limit(self, component: _FastComponent) -> int:
        return min(self._most, len(component.gpus))


def find_link_level(instance: ProblemInstance, table: SegmentTable, best: float) -> float | None:
    """The lowest level at which all components can be divided exactly, and some component has several GPUs.

    None if it is not below `best`, the highest value of a pipeline.
    """
    off = ~np.eye(len(instance.kinds), dtype=bool)
    several = table.counts.sum(axis=1) > 1
    alone = float(table.values[several, instance.layers - 1].max(initial=0.0))
    levels = np.unique(np.concatenate([[alone], instance.links[off]]))
    levels = levels[(levels >= alone) & (levels < best)]
    low, high = -1, len(levels)
    while low + 1 < high:
        middle = (low + high) // 2
        if all(
            _small_classes(sub_instance(instance, gpus))
            for gpus in _fast_components(instance, float(levels[middle]))
        ):
            high = middle
        else:
            low = middle
    if high == len(levels) or all(len(gpus) == 1 for gpus in _fast_components(instance, float(levels[high]))):
        return None
    return float(levels[high])


def _fast_components(instance: ProblemInstance, level: float) -> list[list[int]]:
    """GPUs joined by links above the level."""
    every = np.arange(len(instance.kinds))
    parts = components(instance.links, every, float(np.nextafter(level, np.inf)))
    return [component.gpus.tolist() for component in parts]


def _small_classes(part: ProblemInstance) -> SymmetryClasses | None:
    classes = symmetry_classes(part, _VECTORS)
    return classes if classes is not None and PartitionLattice(classes).pairs() <= _PAIRS else None


def _component_partitioner(
    part: ProblemInstance, table: SegmentTable, best: float, clock: SearchClock
) -> FleetPartitioner:
    classes = _small_classes(part)
    assert classes is not None, "a component was found small before"
    partitioner = FleetPartitioner(part, table, classes, PartitionLattice(classes), clock)
    single = best_single(part, clock.part(_SINGLE_S).left_s())
    partitioner.initialize(
        SearchResult(single.value, min(single.bound, best), single.proven, single.segments, {})
    )
    return partitioner


def _combine_sums(sums: list[np.ndarray], most: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """The best sum for 0 to `most` pipelines in all, and how many of them each component has."""
    total, choices = np.zeros(1), []
    for component_sums in sums:
        size = min(most + 1, len(total) + len(component_sums) - 1)
        table = np.full((size, len(component_sums)), -np.inf)
        for count in range(len(component_sums)):
            rows = np.arange(count, min(size, count + len(total)))
            table[rows, count] = total[rows - count] + component_sums[count]
        choices.append(table.argmax(axis=1))
        total = table.max(axis=1)
    return total, choices


def _backtrack_counts(choices: list[np.ndarray], count: int) -> list[int]:
    counts = []
    for choice in reversed(choices):
        counts.append(int(choice[count]))
        count -= counts[-1]
    return counts[::-1]
