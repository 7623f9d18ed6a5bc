"""Copies of the model on unlike entries of a fleet, with uneven parts of the batch.

As a run does it (`train`, its `shares`): every device holds the whole model and takes equally many micro-batches, whose
size depends on its entry, and all recompute alike. A step takes the longest of the entries' steps and then the exchange
of gradients between them, none of which is hidden. `docs/guides/training.md` gives the formulas.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.search.batch_split import best_split
from torchsplit_core.strategy.search.homogeneous import HomogeneousSearch
from torchsplit_core.strategy.search.space import RECOMPUTES, divisors
from torchsplit_core.values.training import ParallelConfig, Recompute, StepEstimate, Transformer

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class CopiesPart:
    """An entry, given by its position in the fleet, with its sequences of the step, its choices and its step."""

    entry: int
    sequences: int
    choices: ParallelConfig
    step: StepEstimate


@dataclass(frozen=True, slots=True)
class UnevenCopies:
    """Entries that take part, the gradient exchange between them, and the step in seconds."""

    parts: tuple[CopiesPart, ...]
    exchange_s: float
    seconds: float


@dataclass(slots=True)
class CopiesResult:
    """The best of each set of entries, fastest first; no omitted step is shorter than `bound_s`."""

    best: list[UnevenCopies] = field(default_factory=list)
    bound_s: float = INFINITE
    considered: int = 0


PartTable = dict[int, CopiesPart]
"""Parts that fit, by sequences."""


def entry_exchange_s(searches: Sequence[HomogeneousSearch], model: Transformer) -> float:
    """Seconds of summing the model's gradients (4 bytes a weight) over the entries: a ring through each one's nodes."""
    count = len(searches)
    if count < 2:
        return 0.0
    c = constants()
    slowest = min(
        search.machine.devices
        / search.machine.cluster.gpus_per_node
        * search.machine.cluster.between_bytes_per_s
        for search in searches
    )
    passed = 2.0 * 4.0 * model.parameters * (count - 1) / count
    return passed / (slowest * c.between_share) + c.hop_s * count


def part_table(search: HomogeneousSearch, recompute: Recompute, micro_batches: int) -> PartTable:
    """Every part of the batch that fits an entry in `micro_batches`; memory grows with their size."""
    space, devices, table = search.space, search.machine.devices, {}
    choices = ParallelConfig(devices, recompute=recompute)
    fixed = space.fix.given()
    for size in range(1, space.job.global_batch // (devices * micro_batches) + 1):
        choices = replace(choices, micro_batch=size)
        sequences = devices * micro_batches * size
        if any(getattr(choices, name) != value for name, value in fixed.items()):
            continue
        job = replace(space.job, global_batch=sequences)
        step = estimate(
            space.model, search.machine.device, search.machine.cluster, choices, job, search.software(choices)
        )
        if not step.fits:
            break
        table[sequences] = CopiesPart(search.machine.fleet, sequences, choices, step)
    return table


class UnevenCopiesSearch:
    """The search over sets of two entries or more, parts of the batch, micro-batches and recomputation."""

    def __init__(self, searches: Sequence[HomogeneousSearch]) -> None:
        self.searches = searches
        space = searches[0].space
        self.model, self.batch = space.model, space.job.global_batch
        runs = space.runnable.includes(ParallelConfig(2))
        self.recomputes = RECOMPUTES if runs else ()

    def run(self, top_k: int, deadline: float, known_s: float = INFINITE) -> CopiesResult:
        """Search by bounds until one exceeds the k-th best and `known_s`, or time is up."""
        result = CopiesResult()
        best_of_set: dict[tuple[int, ...], UnevenCopies] = {}
        for bound, entries, tables in sorted(self._tasks(result), key=lambda task: task[:2]):
            ranked = sorted(made.seconds for made in best_of_set.values())
            kth = ranked[top_k - 1] if len(ranked) >= top_k else INFINITE
            if bound > kth or bound > known_s:
                break
            if time.monotonic() > deadline and min([known_s, *ranked[:1]]) < INFINITE:
                result.bound_s = bound
                break
            made = self._solve(entries, tables)
            if made and (entries not in best_of_set or made.seconds < best_of_set[entries].seconds):
                best_of_set[entries] = made
        result.best = sorted(best_of_set.values(), key=lambda made: made.seconds)[:top_k]
        return result

    def _tasks(self, result: CopiesResult) -> Iterator[tuple[float, tuple[int, ...], list[PartTable]]]:
        """Sets of entries with their part tables by micro-batches, under the bound of evenly busy entries.

        The number of micro-batches divides the batch, since every entry's part is a multiple of it.
        """
        for recompute in self.recomputes:
            for micro_batches in divisors(self.batch):
                tables = [part_table(search, recompute, micro_batches) for search in self.searches]
                result.considered += sum(map(len, tables))
                rates = [
                    max((sequences / part.step.seconds for sequences, part in table.items()), default=0.0)
                    for table in tables
                ]
                able = [place for place, table in enumerate(tables) if table]
                for count in range(2, len(able) + 1):
                    for entries in combinations(able, count):
                        exchange = entry_exchange_s([self.searches[place] for place in entries], self.model)
                        bound = self.batch / sum(rates[place] for place in entries) + exchange
                        yield bound, entries, [tables[place] for place in entries]

    def _solve(self, entries: tuple[int, ...], tables: Sequence[PartTable]) -> UnevenCopies | None:
        times = [{size: part.step.seconds for size, part in table.items()} for table in tables]
        split = best_split(times, self.batch)
        if split is None:
            return None
        exchange = entry_exchange_s([self.searches[place] for place in entries], self.model)
        parts = tuple(table[size] for table, size in zip(tables, split[1], strict=True))
        return UnevenCopies(parts, exchange, split[0] + exchange)
