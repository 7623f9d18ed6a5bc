"""A bound on the sum of many pipelines from the GPUs of the fleet and the number of pipelines, links left out.

Let a GPU of kind κ be priced at π_κ and a pipeline at σ. A segment of c layers on a multiset a of value v(a, c) costs
π · a for c layers, so at threshold t a layer costs at least λ(t) = min π · a / c over all (a, c) with v(a, c) >= t,
and a pipeline of value t at least M · λ(t). With σ = max_t (t - M · λ(t)), at least 0, no pipeline is worth more than
what it costs, and all together cost at most Σ π_κ · GPUs of κ + R · σ. Any prices give a bound; the least is a linear
program, whose rows are made where they are broken. Only values of segments and the highest value count for t.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.instance import Instance
from torchsplit_core.placement.search.clock import Clock
from torchsplit_core.placement.search.program import INF, Program
from torchsplit_core.placement.search.table import Table, items_at

_ROUNDS = 60
_PRECISION = 1e-7


@dataclass(frozen=True)
class Capacity:
    """bound: no set of pipelines has a larger sum. thresholds: values that pipelines of the bound have, falling."""

    bound: float
    thresholds: tuple[float, ...]


def capacity(instance: Instance, table: Table, most: int, best: float, clock: Clock) -> Capacity:
    """The least bound by prices for at most `most` pipelines, none above `best`."""
    fleet = np.bincount(np.array(instance.kinds), minlength=table.counts.shape[1])
    layers = instance.layers
    size, count = np.nonzero(table.values > 0)
    worth = np.minimum(table.values[size, count], best)
    order = np.argsort(-table.values[size, count], kind="stable")
    size, count, worth = size[order], count[order] + 1, worth[order]
    found, used = most * best, [best]
    if not len(worth):
        return Capacity(0.0, ())
    kinds = len(fleet)
    program = Program()
    unit = best / layers
    program.columns([*fleet.tolist(), float(most)], [INF] * (kinds + 1))
    prices, extra = np.zeros(kinds), 0.0
    for _ in range(_ROUNDS):
        cost = (table.counts[size] @ prices) / count
        over = worth / unit - layers * np.minimum.accumulate(cost)
        place = int(np.argmax(over))
        found = min(found, unit * (float(prices @ fleet) + most * max(0.0, float(over[place]))))
        if over[place] <= extra + _PRECISION * layers or clock.over():
            break
        used.append(float(worth[place]))
        _add(program, table, float(worth[place]), unit, layers, kinds)
        answer = program.solve(clock.left_s(), whole=False)
        if answer.status != "solved":
            break
        prices, extra = answer.values[:kinds], float(answer.values[kinds])
    return Capacity(found, tuple(sorted(set(used), reverse=True)))


def _add(program: Program, table: Table, threshold: float, unit: float, layers: int, kinds: int) -> None:
    """The rows of one threshold: what a layer costs at it, λ, and that a pipeline of it costs what it is worth."""
    items = items_at(table, threshold, len(table.multisets))
    layer = program.columns([0.0], [INF])
    program.row(threshold / unit, INF, [kinds, layer], [1.0, float(layers)])
    for counts, high in zip(items.counts, items.high, strict=True):
        using = np.flatnonzero(counts)
        program.row(0.0, INF, [*using.tolist(), layer], [*counts[using].tolist(), -float(high)])
