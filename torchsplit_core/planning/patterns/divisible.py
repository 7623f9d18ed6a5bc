"""Prices of slices from the linear program with divisible slices, where column generation begins.

| row | formula |
|---|---|
| pool[p] | Σ_u∈p x[u] − Σ_c slices[p,c]·y[c] ≤ 0 |
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| stage[o,s] | v[o] − Σ_u∈(o,s) rate(u)/unit(m)·x[u] ≤ 0 |
| minimum[m] | Σ_o∈m v[o] ≥ minimum(m)/unit(m) |
| rising[m] | Σ_o∈m v[o] − t ≥ 0, t maximised |

It has one solution at a time for all types of the fleet, so its prices weigh them against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector
from torchsplit_core.planning.patterns.options import ModelOptions
from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run

MOST_COLUMNS = 60_000
"""Columns above which the program would take longer than it saves."""

MAX_COEFFICIENT, MIN_COEFFICIENT = 1e12, 1e-8
"""Coefficients beyond which HiGHS rejects a matrix or drops an entry (its limits are 1e15 and 1e-9)."""


@dataclass(frozen=True)
class _Uses:
    """By use, which is a stage on a pool: the level that a slice gives, the stage, the pool.

    `models` has the model of each option, `option_of_stage` the option of each stage.
    """

    rates: Vector
    stages: Counts
    pools: Counts
    models: Counts
    option_of_stage: Counts


def divisible_prices(
    capacity: FleetCapacity,
    options: Sequence[ModelOptions],
    units: Vector,
    minima: Vector,
    rising: Sequence[int],
) -> Vector | None:
    """Prices by pool at the highest level that all `rising` models (indices) reach with divisible slices.

    `units[m]`: requests/s for a level of 1; `minima[m]`: requests/s. None if the program is too large or has no
    solution.
    """
    pools, groups, layouts = len(capacity.pools), len(capacity.gpus), len(capacity.columns)
    table = _list_uses(options, units)
    rates, owner = table.rates, table.models
    uses, stages, variants = len(rates), len(table.option_of_stage), len(owner)
    if uses > MOST_COLUMNS or not uses or rates.max() > MAX_COEFFICIENT or rates.min() < MIN_COEFFICIENT:
        return None
    layout_at, option_at = uses, uses + layouts
    level_at = option_at + variants
    stage_at = pools + groups
    minimum_at = stage_at + stages
    rising_at = minimum_at + len(options)
    rows = rising_at + len(rising)
    pool, column = np.nonzero(capacity.slices)
    row_of_rising = np.full(len(options), -1)
    row_of_rising[list(rising)] = rising_at + np.arange(len(rising))
    rises = np.flatnonzero(row_of_rising[owner] >= 0)
    parts = [
        (table.pools, np.arange(uses), np.ones(uses)),
        (pool, layout_at + column, -capacity.slices[pool, column].astype(np.float64)),
        (pools + capacity.group_of, layout_at + np.arange(layouts), np.ones(layouts)),
        (stage_at + table.stages, np.arange(uses), -rates),
        (stage_at + np.arange(stages), option_at + table.option_of_stage, np.ones(stages)),
        (minimum_at + owner, option_at + np.arange(variants), np.ones(variants)),
        (row_of_rising[owner[rises]], option_at + rises, np.ones(len(rises))),
        (rising_at + np.arange(len(rising)), np.full(len(rising), level_at), -np.ones(len(rising))),
    ]
    row, col, value = (np.concatenate([part[i] for part in parts]) for i in range(3))
    lower, upper = np.full(rows, -INF), np.zeros(rows)
    upper[pools:stage_at] = capacity.gpus
    lower[minimum_at:rising_at], upper[minimum_at:] = minima / units, INF
    lower[rising_at:] = 0.0
    cost = np.zeros(level_at + 1)
    cost[level_at] = -1.0
    highs = load_program(
        "planner's program of divisible slices",
        csc_from_entries(value, row, col, (rows, level_at + 1)),
        cost,
        columns=(np.zeros(level_at + 1), np.full(level_at + 1, INF)),
        rows=(lower, upper),
    )
    if run(highs) != "optimal":
        return None
    prices: Vector = np.maximum(-np.array(highs.getSolution().row_dual)[:pools], 0.0)
    return prices if prices.any() else None


def _list_uses(options: Sequence[ModelOptions], units: Vector) -> _Uses:
    rates: list[Vector] = []
    stages: list[Counts] = []
    pools: list[Counts] = []
    models: list[int] = []
    option_of_stage: list[int] = []
    for model, model_options in enumerate(options):
        for option in model_options.options:
            for stage in option.stages:
                usable = np.flatnonzero(stage.rates > 0)
                rates.append(stage.rates[usable] / units[model])
                stages.append(np.full(len(usable), len(option_of_stage)))
                pools.append(usable)
                option_of_stage.append(len(models))
            models.append(model)
    return _Uses(
        np.concatenate([np.zeros(0), *rates]),
        np.concatenate([np.zeros(0, dtype=np.int64), *stages]),
        np.concatenate([np.zeros(0, dtype=np.int64), *pools]),
        np.array(models, dtype=np.int64),
        np.array(option_of_stage, dtype=np.int64),
    )
