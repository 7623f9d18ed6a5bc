"""Sizes an LLM: rows in the order of what they cost, those simulated that are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchsplit_core.hardware import peaks
from torchsplit_core.sizing.candidates import Candidate, candidates
from torchsplit_core.sizing.engine_row import PreparedEngine, SizingRow, prepare, simulated_row
from torchsplit_core.sizing.request import SizingRequest, check_request
from torchsplit_core.values import Progress, ignore_progress


@dataclass(frozen=True, slots=True)
class SizingTable:
    """Rows in the order of what they cost, then those that exceed a limit, then those that do not fit.

    Only the first `simulated` of those that fit have figures of a simulation. `left_out` says why types, slices and
    groups have no row.
    """

    request: SizingRequest
    rows: tuple[SizingRow, ...]
    simulated: int
    left_out: tuple[str, ...]

    @property
    def reaches(self) -> bool:
        """Whether any row reaches the rate within the limits."""
        return any(row.reaches for row in self.rows)


def size(
    request: SizingRequest, *, most_simulated: int | None = None, progress: Progress = ignore_progress
) -> SizingTable:
    """The table, all of it simulated, or as many rows as are `most_simulated`: the best, by rates in closed form first.

    Raises InputFault for a request that makes no sense, or where every type, slice and group is left out.
    """
    check_request(request)
    offered, left_out = candidates(request)
    rows: dict[Candidate, SizingRow] = {}
    waiting: dict[Candidate, PreparedEngine] = {}
    for candidate in offered:
        made = prepare(request, candidate)
        if isinstance(made, PreparedEngine):
            waiting[candidate] = made
            made = made.row
        rows[candidate] = made
    most = len(waiting) if most_simulated is None else min(most_simulated, len(waiting))
    done = 0
    while True:
        order = sorted(rows, key=lambda candidate: _rank(candidate, rows[candidate]))
        due = next((candidate for candidate in order[:most] if candidate in waiting), None)
        if due is None:
            break
        progress(done / max(most, done + 1), f"simulating {due.device.gpu_type}")
        rows[due] = simulated_row(request, waiting.pop(due))
        done += 1
    return SizingTable(request, tuple(rows[candidate] for candidate in order), most, left_out)


def _rank(candidate: Candidate, row: SizingRow) -> tuple[float | str, ...]:
    """Those that reach the rate by price, GPUs and size of the GPU; the others after them."""
    memory = peaks(row.gpu_type).memory_gib or 0.0
    if row.gpus is not None and row.engines is not None:
        price = math.inf if row.cost is None else row.cost
        taken = row.engines * row.tensor_parallel / candidate.instances
        return (0, price, row.gpus, memory * row.gpus, taken, -(row.rate_rps or 0.0))
    return (1 if row.fits else 2, memory * row.tensor_parallel, -(row.max_context or 0))
