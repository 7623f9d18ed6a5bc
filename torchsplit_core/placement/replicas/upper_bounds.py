"""Upper bounds of single pipelines by their GPUs of each class, before any search.

At a threshold t let prices π of the kinds cover every item: an item's GPUs cost at least the layers it holds. Then no
packing of a fleet holds more layers than its GPUs cost in all, and a fleet that costs less than M layers has no
pipeline of value t. A pipeline of several segments lies within one component of the links >= t.
"""

from __future__ import annotations

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.symmetry_classes import SymmetryClasses
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.network import components
from torchsplit_core.placement.search.segment_table import Items, SegmentTable, candidate_values, items_at
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram

MOST_THRESHOLDS = 256
"""Most thresholds, spread evenly over all; fewer make weaker bounds. Chosen, not measured."""

SLACK = 1e-6
"""In layers: a fleet that costs this much less than all of them is not refuted, since prices are rounded."""


def upper_bounds(
    instance: ProblemInstance,
    table: SegmentTable,
    classes: SymmetryClasses,
    vectors: np.ndarray,
    best: float,
    clock: SearchClock,
) -> np.ndarray:
    """float64, one a vector (GPUs of each class): no pipeline within it has a higher throughput.

    best: no pipeline of the whole fleet exceeds it. Thresholds that time leaves out only weaken the bounds; an
    incomplete table gives none.
    """
    if not table.complete:
        return np.full(len(vectors), best)
    values = candidate_values(instance, table)
    # The limit of the whole may keep a pipeline below all its parts: the next higher value decides who has none.
    values = values[: int(np.searchsorted(values, best, "right")) + (instance.flight is not None)]
    bounds = np.full(len(vectors), best)
    if not len(values):
        return np.zeros(len(vectors))
    indices = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_THRESHOLDS)).astype(np.int64))
    able = np.ones(len(vectors), dtype=bool)
    for index in indices.tolist():
        if clock.over():
            break
        value = float(values[index])
        items = items_at(table, value, instance.max_gpus)
        able &= ~_infeasible_vectors(instance, items, classes, vectors, value, clock)
        below = float(values[index - 1]) if index else 0.0
        bounds[~able] = np.minimum(bounds[~able], below)
        if not able.any():
            break
    return bounds


def _infeasible_vectors(
    instance: ProblemInstance,
    items: Items,
    classes: SymmetryClasses,
    vectors: np.ndarray,
    value: float,
    clock: SearchClock,
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
        price = cover_prices(items, fleet, instance.layers, clock)
        able |= vectors[:, inside] @ price[kinds[inside]] >= instance.layers - SLACK
    return ~able


def cover_prices(items: Items, fleet: np.ndarray, layers: int, clock: SearchClock) -> np.ndarray:
    """The most layers that a GPU of each kind adds, the least in all for this fleet (GPUs of each kind)."""
    present = np.flatnonzero(fleet)
    fits = (items.counts <= fleet).all(axis=1)
    counts, high = items.counts[fits], items.high[fits]
    layer_prices = np.zeros(len(fleet))
    if not len(high):
        return layer_prices
    if len(present) == 1:
        kind = int(present[0])
        layer_prices[kind] = (high / counts[:, kind]).max(initial=0.0)
        return layer_prices
    program = RowProgram()
    program.add_columns(fleet[present].tolist(), [float(layers)] * len(present))
    for row, most in zip(counts[:, present], high, strict=True):
        using = np.flatnonzero(row)
        program.add_row(float(most), INF, using, row[using])
    solution = program.solve(clock.left_s(), integer=False)
    layer_prices[present] = solution.values if solution.status == "optimal" else float(layers)
    # Rounding of the solver may leave an item slightly above its price.
    short = (high / np.maximum(counts @ layer_prices, 1e-300)).max(initial=1.0)
    priced: np.ndarray = layer_prices * max(1.0, short)
    return priced
