"""A bound on the sum of many pipelines from the GPUs of the fleet, its components, and the number of pipelines.

Let a GPU of kind κ have price π_κ. A segment of c layers on a multiset a of value v(a, c) costs π · a for c layers, so
at threshold t a layer costs at least λ(t) = min π · a / c over all (a, c) with v(a, c) >= t, and a pipeline of value t
at least M · λ(t). With the surplus σ = max_t (t - M · λ(t)), at least 0, a pipeline's value is at most its cost plus σ,
and that of R pipelines at most Σ π_κ · GPUs of κ + R · σ. Any prices give a bound; the best are from a linear program
whose rows are generated when violated. Only values of segments and the ends of bands (dual_prices.py) matter for t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.replicas.dual_prices import DualPrices
from torchsplit_core.placement.search.clock import SearchClock
from torchsplit_core.placement.search.segment_table import Items, SegmentTable
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram

_ROUNDS = 60
"""Most linear programs, each with the rows of one more threshold; the bound holds after any. Chosen, not measured."""

_PRECISION = 1e-7
"""In best single pipelines: the rounds end when the surplus exceeds the program's by no more than this."""


@dataclass(frozen=True)
class CapacityBound:
    """bound: no set of pipelines has a larger sum. prices: of a GPU of each kind. surplus: σ at these prices.

    thresholds: values of pipelines that determine the prices, descending.
    """

    bound: float
    prices: np.ndarray
    surplus: float
    thresholds: tuple[float, ...]


def capacity_bound(
    instance: ProblemInstance, table: SegmentTable, most: int, best: float, clock: SearchClock
) -> CapacityBound:
    """The least bound by prices for at most `most` pipelines, none above `best`.

    Without a complete table, the bound at prices 0.
    """
    fleet = np.bincount(np.array(instance.kinds), minlength=table.counts.shape[1])
    kinds, unit = len(fleet), best / instance.layers
    if not table.complete:
        return CapacityBound(most * best, np.zeros(kinds), best, (best,))
    dual = DualPrices(instance, table, best, clock)
    if dual.surplus(np.zeros(kinds))[0] <= 0:
        return CapacityBound(0.0, np.zeros(kinds), 0.0, ())
    program = RowProgram()
    program.add_columns([*fleet.tolist(), float(most)], [INF] * (kinds + 1))
    prices, paid = np.zeros(kinds), 0.0
    tightest, used = CapacityBound(most * best, prices, best, ()), [best]
    for _ in range(_ROUNDS):
        beyond, value = dual.surplus(prices)
        surplus = max(0.0, beyond)
        bound = float(prices @ fleet) + most * surplus
        if bound <= tightest.bound:
            tightest = CapacityBound(bound, prices, surplus, ())
        if surplus <= paid + _PRECISION * best or clock.over():
            break
        used.append(value)
        _add_threshold_rows(program, dual.items(value), value / unit, instance.layers, kinds)
        solution = program.solve(clock.left_s(), integer=False)
        if solution.status != "optimal":
            break
        prices, paid = solution.values[:kinds] * unit, float(solution.values[kinds]) * unit
    return CapacityBound(
        tightest.bound, tightest.prices, tightest.surplus, tuple(sorted(set(used), reverse=True))
    )


def _add_threshold_rows(program: RowProgram, items: Items, value: float, layers: int, kinds: int) -> None:
    """The rows of one threshold: the cost λ of a layer at it, and that a pipeline of it costs its value."""
    layer = program.add_columns([0.0], [INF])
    program.add_row(value, INF, [kinds, layer], [1.0, float(layers)])
    for counts, high in zip(items.counts, items.high, strict=True):
        using = np.flatnonzero(counts)
        program.add_row(0.0, INF, [*using.tolist(), layer], [*counts[using].tolist(), -float(high)])
