"""Can segments from a fleet hold all layers if every link is fast enough?

n_a integer, how often item a is used:

| row | formula |
|---|---|
| gpus[κ] | Σ_a (GPUs of kind κ in a) · n_a ≤ GPUs of kind κ |
| layers_least | Σ_a low_a · n_a ≤ M |
| layers_most | Σ_a high_a · n_a ≥ M |
| segments | least ≤ Σ_a n_a ≤ most, if their number is limited |
| minimise | Σ_a (GPUs of a) · n_a |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import Items
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values.status import SearchVerdict


@dataclass(frozen=True)
class Packing:
    """chosen: items, one entry a segment. gpus: their number. status none: there is no packing."""

    status: SearchVerdict
    chosen: tuple[int, ...] = ()
    gpus: int = 0


def can_hold(items: Items, chosen: tuple[int, ...], layers: int) -> bool:
    """Whether layer counts of these items can add up to `layers`: any sum between the extremes is possible."""
    picked = list(chosen)
    return bool(items.low[picked].sum() <= layers <= items.high[picked].sum())


def pack(
    items: Items,
    fleet: np.ndarray,
    layers: int,
    clock: SearchClock,
    *,
    fewest: bool = False,
    segments: tuple[int, int] | None = None,
) -> Packing:
    """Items within the GPUs of each kind that hold all layers; `fewest`: with the fewest GPUs, proven.

    segments: the least and the most of them; None: any number.
    """
    usable = np.flatnonzero((items.counts <= fleet).all(axis=1) & (items.low <= layers))
    if not len(usable):
        return Packing("none")
    if not fewest:
        quick = greedy_items(items, usable, fleet, layers)
        if quick and (segments is None or segments[0] <= len(quick) <= segments[1]):
            return Packing("found", quick, int(items.sizes[list(quick)].sum()))
    counts = items.counts[usable]
    most = np.where(counts > 0, fleet // np.maximum(counts, 1), layers).min(axis=1)
    most = np.minimum(most, layers // items.low[usable])
    program = RowProgram()
    program.add_columns(items.sizes[usable].tolist(), most.tolist())
    every = np.arange(len(usable))
    for kind in np.flatnonzero(counts.any(axis=0)).tolist():
        program.add_row(-INF, int(fleet[kind]), every, counts[:, kind])
    program.add_row(-INF, layers, every, items.low[usable])
    program.add_row(layers, INF, every, items.high[usable])
    if segments is not None:
        program.add_row(*segments, every, np.ones(len(usable)))
    clock.count("packings")
    solution = program.solve(clock.left_s(), first=not fewest)
    if solution.status == "infeasible":
        return Packing("none")
    if solution.status == "unknown" or (fewest and solution.status != "optimal"):
        return Packing("unknown")
    times = np.rint(solution.values).astype(np.int64)
    chosen = tuple(np.repeat(usable, times).tolist())
    fits = (counts * times[:, None]).sum(axis=0) <= fleet
    if not (fits.all() and can_hold(items, chosen, layers)):
        return Packing("unknown")
    return Packing("found", chosen, int(items.sizes[list(chosen)].sum()))


def greedy_items(items: Items, usable: np.ndarray, fleet: np.ndarray, layers: int) -> tuple[int, ...]:
    """Items for all layers, most layers a GPU first; empty if they do not hold all."""
    order = usable[np.lexsort((usable, items.sizes[usable], -items.high[usable] / items.sizes[usable]))]
    left, low, high, chosen = fleet.copy(), 0, 0, []
    for item in order.tolist():
        while high < layers and low + items.low[item] <= layers and (items.counts[item] <= left).all():
            left -= items.counts[item]
            low, high = low + items.low[item], high + items.high[item]
            chosen.append(item)
    return tuple(chosen) if high >= layers else ()
