"""Sizes an LLM: rows in the order of what they cost, those simulated that are shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.hardware import peaks
from torchsplit_core.sizing.engine_row import PreparedEngine, SizingRow, excess, prepare, simulated_row
from torchsplit_core.sizing.places import SizedPlace, engine_places
from torchsplit_core.sizing.request import SizingRequest, check_request
from torchsplit_core.values import Progress, ignore_progress


@dataclass(frozen=True, slots=True)
class SizingTable:
    """Rows in the order of what they cost, then those that exceed a limit, nearest first, then those that do not fit.

    `best` are those of the rows that fit which are simulated: all, or the best of each GPU type. `left_out` says why
    types, slices and groups have no row.
    """

    request: SizingRequest
    rows: tuple[SizingRow, ...]
    best: tuple[SizingRow, ...]
    left_out: tuple[str, ...]

    @property
    def reaches(self) -> bool:
        """Whether any row reaches the rate within the limits."""
        return any(row.reaches for row in self.rows)


def size(
    request: SizingRequest, *, most_simulated: int | None = None, progress: Progress = ignore_progress
) -> SizingTable:
    """The table, all of it simulated, or at most `most_simulated` rows of it: the best of each GPU type, by rates in
    closed form first.

    Raises InputFault for a request that makes no sense, or where every type, slice and group is left out.
    """
    check_request(request)
    offered, left_out = engine_places(request)
    prepared = [prepare(request, place) for place in offered]
    rows = [entry.row if isinstance(entry, PreparedEngine) else entry for entry in prepared]
    waiting = {number for number, entry in enumerate(prepared) if isinstance(entry, PreparedEngine)}
    most = len(waiting) if most_simulated is None else min(most_simulated, len(waiting))
    each = max(most // len(request.gpus), 2)
    done = 0
    while True:
        order = sorted(range(len(rows)), key=lambda number: _rank(request, offered[number], rows[number]))
        chosen = _best_of_types(order, offered, each) if most_simulated is not None else order
        chosen = [number for number in chosen if rows[number].fits][:most]
        due = next((number for number in chosen if number in waiting), None)
        if due is None and any(rows[number].reaches for number in chosen):
            break
        # Where nothing reaches the rate, the nearest of all is asked for.
        due = next((number for number in order if number in waiting), None) if due is None else due
        if due is None:
            break
        entry = prepared[due]
        assert isinstance(entry, PreparedEngine)
        progress(done / max(most, done + 1), f"simulating {entry.engine.id}")
        rows[due] = simulated_row(request, entry)
        waiting.discard(due)
        done += 1
    best = tuple(rows[number] for number in chosen)
    return SizingTable(request, tuple(rows[number] for number in order), best, left_out)


def _best_of_types(order: Sequence[int], offered: Sequence[SizedPlace], each: int) -> list[int]:
    """The first `each` of every GPU type in their order, without slices of all of a GPU: they say nothing beside it."""
    counts: Counter[str] = Counter()
    chosen = []
    for number in order:
        device = offered[number].device
        is_all = (
            device.profile is not None and device.memory_gb_per_s == peaks(device.gpu_type).memory_gb_per_s
        )
        if counts[device.gpu_type] < each and not is_all:
            counts[device.gpu_type] += 1
            chosen.append(number)
    return chosen


def _rank(request: SizingRequest, place: SizedPlace, row: SizingRow) -> tuple[float, ...]:
    """Those that reach the rate by price, GPUs and size of the GPU; the others after them."""
    memory = peaks(row.gpu_type).memory_gib or 0.0
    if row.gpus is not None and row.engines is not None:
        price = math.inf if row.cost is None else row.cost
        taken = row.engines * row.tensor_parallel / place.instances
        return (0, price, row.gpus, memory * row.gpus, taken, row.profile is not None, -(row.rate_rps or 0.0))
    if row.fits:
        return (1, excess(row, request.limits), memory * row.tensor_parallel)
    return (2, row.binds == "memory", row.weights_gib / memory if memory else math.inf)
