"""Several pipelines at once: what a search for them gives back, and a part of the fleet as an instance of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import Found, Instance, Segments
from torchsplit_core.placement.search.segments import worth
from torchsplit_core.placement.search.table import Table
from torchsplit_core.values import InternalFault

EQUAL = 1e-9
"""Sums closer than this, relatively, are equal: they are added up in different orders."""


@dataclass(frozen=True)
class Pipelines:
    """Disjoint pipelines, each of all layers, the fastest first.

    value: the sum of their throughputs. bound: no permitted set of pipelines has a larger sum. proven: value is
    bound. No pipelines: none was found; none exists only where this is proven, with bound 0.
    """

    value: float
    bound: float
    proven: bool
    pipelines: tuple[Segments, ...]
    statistics: Mapping[str, float]


def in_order(instance: Instance, pipelines: Iterable[Segments]) -> tuple[float, tuple[Segments, ...]]:
    """The sum of the throughputs, reckoned from the instance, and the pipelines with the fastest first.

    Raises InternalFault where one breaks a rule or two share a GPU.
    """
    found = [(worth(instance, one), one) for one in pipelines]
    gpus = [gpu for _, one in found for _, chosen in one for gpu in chosen]
    if len(set(gpus)) < len(gpus) or any(value <= 0 for value, _ in found):
        raise InternalFault("The search for several pipelines made some that cannot run at once.")
    found.sort(key=lambda one: (-one[0], one[1]))
    return sum(value for value, _ in found), tuple(one for _, one in found)


def part_of(instance: Instance, gpus: Sequence[int]) -> Instance:
    """The instance with these GPUs alone, numbered in the order given."""
    chosen = list(gpus)
    return replace(
        instance,
        kinds=tuple(instance.kinds[gpu] for gpu in chosen),
        links=instance.links[np.ix_(chosen, chosen)],
        max_gpus=min(instance.max_gpus, len(chosen)),
    )


def rows_of(table: Table, part: Instance) -> Table:
    """The rows of the whole fleet's table that a part of it has the GPUs for."""
    fleet = np.bincount(np.array(part.kinds), minlength=table.counts.shape[1])
    fits = np.flatnonzero((table.counts <= fleet).all(axis=1))
    multisets = tuple(table.multisets[one] for one in fits.tolist())
    return Table(multisets, table.counts[fits], table.values[fits], table.complete)


def back(segments: Segments, gpus: Sequence[int]) -> Segments:
    """Segments of a part of the fleet with the GPUs' numbers in the whole fleet."""
    return tuple((count, tuple(sorted(gpus[one] for one in chosen))) for count, chosen in segments)


def best_single(instance: Instance, seconds: float) -> Found:
    """The best single pipeline."""
    return best_pipeline(instance, time_limit_s=seconds)
