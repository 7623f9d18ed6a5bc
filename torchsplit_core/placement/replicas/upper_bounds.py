"""What no single pipeline on so many GPUs of each class passes, before anything is searched.

At a threshold t let prices π of the kinds cover every item: what an item's GPUs cost is at least the layers it
holds. Then no packing of a fleet holds more layers than its GPUs cost in all, and a fleet that costs less than M
layers has no pipeline of value t. A pipeline of two segments or more lies within one component of the links >= t.
"""

from __future__ import annotations

import numpy as np

from torchsplit_core.placement.model.instance import Instance
from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.table import Items, Table, candidates, items_at
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram

MOST_THRESHOLDS = 256
"""Thresholds that are looked at, spread evenly over all; fewer make weaker bounds. Chosen, not measured."""

SLACK = 1e-6
"""In layers: what costs this much less than all of them is not refuted, since prices are rounded."""


def upper_bounds(
    instance: Instance, table: Table, classes: SymmetryClasses, vectors: np.ndarray, best: float, clock: Clock
) -> np.ndarray:
    """float64, one a vector (GPUs of each class): no pipeline within it has a higher throughput.

    best: what no pipeline of the whole fleet passes. Thresholds that time leaves out only make it weaker; a table that
    is not complete tells nothing.
    """
    if not table.complete:
        return np.full(len(vectors), best)
    values = candidates(instance, table)
    # What limits a pipeline as a whole may hold it below all of its parts: the next value above tells who has none.
    values = values[: int(np.searchsorted(values, best, "right")) + (instance.flight is not None)]
    found = np.full(len(vectors), best)
    if not len(values):
        return np.zeros(len(vectors))
    indices = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_THRESHOLDS)).astype(np.int64))
    able = np.ones(len(vectors), dtype=bool)
    for index in indices.tolist():
        if clock.over():
            break
        value = float(values[index])
        items = items_at(table, value, instance.max_gpus)
        able &= ~_refuted(instance, items, classes, vectors, value, clock)
        below = float(values[index - 1]) if index else 0.0
        found[~able] = np.minimum(found[~able], below)
        if not able.any():
            break
    return found


def _refuted(
    instance: Instance,
    items: Items,
    classes: SymmetryClasses,
    vectors: np.ndarray,
    value: float,
    clock: Clock,
) -> np.ndarray:
    """Which vectors have no pipeline that reaches this value, bool by index."""
    kinds = np.array(classes.kinds)
    alone = (items.low <= instance.layers) & (items.high >= instance.layers)
    width = items.counts.shape[1]
    able = np.zeros(len(vectors), dtype=bool)
    if alone.any():
        fleets = np.zeros((len(vectors), width), dtype=np.int64)
        np.add.at(fleets.T, kinds, vectors.T)
        for counts in np.unique(items.counts[alone], axis=0):
            able |= (fleets >= counts).all(axis=1)
    usable = np.flatnonzero((items.counts.sum(axis=0) > 0)[kinds])
    sizes = np.array([len(members) for members in classes.members])
    for component in components(classes.links, usable, value):
        inside = component.gpus
        fleet = np.bincount(kinds[inside], weights=sizes[inside], minlength=width)
        price = prices(items, fleet, instance.layers, clock)
        able |= vectors[:, inside] @ price[kinds[inside]] >= instance.layers - SLACK
    return ~able


def prices(items: Items, fleet: np.ndarray, layers: int, clock: Clock) -> np.ndarray:
    """The layers that a GPU of each kind adds at most, the least in all for this fleet (GPUs of each kind)."""
    present = np.flatnonzero(fleet)
    fits = (items.counts <= fleet).all(axis=1)
    counts, high = items.counts[fits], items.high[fits]
    found = np.zeros(len(fleet))
    if not len(high):
        return found
    if len(present) == 1:
        kind = int(present[0])
        found[kind] = (high / counts[:, kind]).max(initial=0.0)
        return found
    program = RowProgram()
    program.add_columns(fleet[present].tolist(), [float(layers)] * len(present))
    for row, most in zip(counts[:, present], high, strict=True):
        using = np.flatnonzero(row)
        program.add_row(float(most), INF, using, row[using])
    answer = program.solve(clock.left_s(), integer=False)
    found[present] = answer.values if answer.status == "optimal" else float(layers)
    # Rounding of the solver may leave an item a little dearer than its price.
    short = (high / np.maximum(counts @ found, 1e-300)).max(initial=1.0)
    priced: np.ndarray = found * max(1.0, short)
    return priced
