"""A stage's servers as the queues see them: limits and batch times in units of the time base."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from torchsplit_core.simulation.time_base import Instants, TimeBase, as_fraction
from torchsplit_core.values import Server, Service


class BatchFactors(Protocol):
    """A factor by the number of a batch: a list, or one that is drawn as it is asked for."""

    def __getitem__(self, batch: int, /) -> float: ...


Factors = BatchFactors | None
"""Factors on the mean time of the first, second, … batch of a stage; None means 1."""

PaceFunction = Callable[[Any], float]
"""The factor on the time of a batch that begins at an instant."""


@dataclass(frozen=True, slots=True)
class Station:
    """`count` equal servers. `durations[b]` is the mean time of a batch of b; without `pace` the speed is constant."""

    entry: int
    count: int
    max_batch: int
    max_wait: Any
    durations: Mapping[int, Any]
    factors: Factors = None
    pace: PaceFunction | None = None

    def service_time(self, size: int, batch: int, start: Any) -> Any:
        """How long a batch of this size takes that is the stage's number `batch` and begins at `start`."""
        mean = self.durations[size]
        if self.pace is not None:
            mean = mean * self.pace(start)
        return mean if self.factors is None else mean * self.factors[batch]


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches in the order in which they began; `order` holds the requests as indices of the queue's arrivals.

    `order` None: requests were served in order of arrival.
    """

    starts: Instants
    ends: Instants
    sizes: Instants
    entries: Instants
    order: Instants | None = None


def batch_time(table: Mapping[int, float], size: int) -> Fraction:
    """Milliseconds of a batch: linear between the sizes of the table, constant below the smallest."""
    if size in table:
        return as_fraction(table[size])
    sizes = sorted(table)
    if size < sizes[0]:
        return as_fraction(table[sizes[0]])
    above = bisect_left(sizes, size)
    low, high = sizes[above - 1], sizes[above]
    before, behind = as_fraction(table[low]), as_fraction(table[high])
    return before + (behind - before) * Fraction(size - low, high - low)


def duration_units(table: Mapping[int, float]) -> Iterator[Fraction]:
    """Times, in ms, of which every batch time is an integer combination."""
    sizes = sorted(table)
    yield from (as_fraction(table[size]) for size in sizes)
    for low, high in pairwise(sizes):
        yield (as_fraction(table[high]) - as_fraction(table[low])) / (high - low)


class Durations(dict[int, Any]):
    """Mean batch times by size, in units of the time base, computed when a size is first used."""

    def __init__(self, table: Mapping[int, float], time_base: TimeBase) -> None:
        super().__init__()
        self.table, self.time_base = table, time_base

    def __missing__(self, size: int) -> Any:
        self[size] = self.time_base.from_ms(batch_time(self.table, size))
        return self[size]


def make_station(
    entry: int, server: Server, time_base: TimeBase, factors: Factors, pace: PaceFunction | None = None
) -> Station:
    """Convert a server of the request to units of the time base."""
    wait = time_base.from_ms(as_fraction(server.max_wait_ms))
    durations = Durations(server.batch_ms, time_base)
    return Station(entry, server.count, server.max_batch, wait, durations, factors, pace)


def draw_factors(service: Service, batches: int, rng: np.random.Generator) -> list[float] | None:
    """A factor of mean 1 for each batch; None for a service that does not vary."""
    if service.kind == "exponential":
        return list(map(float, rng.standard_exponential(batches)))
    if service.kind == "lognormal":
        # Mean 1 and standard deviation cv: sigma² = ln(1 + cv²), mu = -sigma² / 2.
        sigma = math.sqrt(math.log1p((service.cv or 0.0) ** 2))
        return list(map(float, rng.lognormal(-sigma * sigma / 2, sigma, batches)))
    return None
