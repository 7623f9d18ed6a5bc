"""The master program: one pattern a model, whole layouts, the least part ζ of the fleet.

| row | formula |
|---|---|
| one_pattern[m] | Σ_j λ[m,j] = 1 |
| pool[p] | Σ_mj usage[m,j,p]·λ[m,j] ≤ Σ_c slices[p,c]·y[c] + s[p] |
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g]·ζ |
| limit[i] | Σ_c taken[i,c]·y[c] ≤ at_most[i]·ζ, where GPUs are taken in groups |
| below[i] | Σ of λ[m,j] below threshold i, m among the models it applies to, ≤ the models allowed below it |

With costs of layouts ζ is 1, and the least Σ_c cost[c]·y[c] is sought; no slice is missing (s[p] = 0).

In whole numbers without costs ζ is 1 too, and the least Σ_p price[p]·s[p] of missing slices is sought: 0 is a choice
that fits. This has solutions from the start, which HiGHS improves; where no slice may be missing, it seldom finds one
on large fleets. In the linear program none is missing.

HiGHS gets it as a matrix, not through Pyomo: it is solved hundreds of times a second, and columns are added one by one.
All coefficients but ζ's are whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.capacity import Counts, FleetCapacity, Vector
from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run
from torchsplit_core.values import InternalFault

MISSING_COST = 100.0
"""Cost of a model without a pattern in the linear program, in fleets; it raises the prices."""

MIN_SHORTAGE_PRICE = 0.01
"""Least price of a missing slice, in units of the dearest."""

RELATIVE_GAP = 1e-6
"""Relative gap at which a cheapest choice counts as such."""

SHORT = 1e-4
"""A bound of the cost of missing slices, in units of the dearest, from which on a slice is missing."""

Flags = NDArray[np.bool_]

Column = tuple[int, int, Counts]
"""Model, class (how many thresholds after the first it reaches), slices by pool."""


@dataclass(frozen=True)
class Duals:
    """ζ of the linear program, prices by pool, and the cost of a model below each threshold.

    `parts` are those of its columns, `gpus` are by layout column.
    """

    zeta: float
    prices: Vector
    models: Vector
    below: Vector
    parts: Vector
    gpus: Vector


@dataclass(frozen=True)
class IntegerSolution:
    """The chosen column of every model, and GPUs by layout column."""

    columns: tuple[int, ...]
    layouts: Counts


def solve_relaxation(
    capacity: FleetCapacity,
    subsets: Flags,
    columns: Sequence[Column],
    allowed: Sequence[int],
    costs: Vector | None = None,
) -> Duals:
    """Solve the linear program over these columns; a model without enough columns pays MISSING_COST.

    `subsets[i, m]`: whether threshold i applies to model m. `costs`: of a GPU by layout column; ζ is then the cost.
    """
    highs = _build_program(capacity, subsets, columns, allowed, costs, whole=False)
    if run(highs) != "optimal":
        raise InternalFault("HiGHS could not solve the planner's linear program.")
    return _read_duals(highs, capacity, subsets, columns, allowed)


def interior_duals(
    capacity: FleetCapacity, subsets: Flags, columns: Sequence[Column], allowed: Sequence[int]
) -> Duals | None:
    """Duals amid all optimal ones, about; None if HiGHS has none.

    At these every layout and column that no optimum has any part of costs more than it is worth.
    """
    highs = _build_program(capacity, subsets, columns, allowed, None, whole=False)
    highs.setOptionValue("solver", "ipx")
    highs.setOptionValue("run_crossover", "off")
    if run(highs) != "optimal":
        return None
    return _read_duals(highs, capacity, subsets, columns, allowed)


def _read_duals(
    highs: Any, capacity: FleetCapacity, subsets: Flags, columns: Sequence[Column], allowed: Sequence[int]
) -> Duals:
    models = subsets.shape[1]
    solution = highs.getSolution()
    rows, values = np.array(solution.row_dual), np.array(solution.col_value)
    pools, groups = len(capacity.pools), len(capacity.gpus) + len(capacity.at_most)
    return Duals(
        float(highs.getInfo().objective_function_value),
        np.maximum(-rows[models : models + pools], 0.0),
        rows[:models],
        np.maximum(-rows[models + pools + groups :][: len(allowed)], 0.0),
        values[: len(columns)],
        values[len(columns) :][: len(capacity.columns)],
    )


def solve_integer(
    capacity: FleetCapacity,
    subsets: Flags,
    columns: Sequence[Column],
    allowed: Sequence[int],
    seconds: float,
    prices: Vector,
    costs: Vector | None = None,
    max_cost: float = INF,
    usable: NDArray[np.bool_] | None = None,
) -> IntegerSolution | Literal["none", "unknown"]:
    """One column a model on the whole fleet; "none" if HiGHS proves that these columns have no such choice.

    Any choice is taken; `prices`, of a slice by pool, say which slices had better not be missing on the way to it. With
    `costs`, of a GPU by layout column, it is the cheapest that costs at most `max_cost`; layouts that are not `usable`
    are left out.
    """
    models = subsets.shape[1]
    highs = _build_program(
        capacity,
        subsets,
        columns,
        allowed,
        costs,
        whole=True,
        max_cost=max_cost,
        prices=prices if costs is None else None,
        usable=usable,
    )
    if costs is None:
        _stop_if_short(highs)
    status = run(highs, max(seconds, 0.02))
    if status == "infeasible" or (costs is None and highs.getInfo().mip_dual_bound > SHORT):
        return "none"
    if status not in ("optimal", "feasible"):
        return "unknown"
    values = np.array(highs.getSolution().col_value)
    chosen = [-1] * models
    for number in np.flatnonzero(values[: len(columns)] > 0.5).tolist():
        chosen[columns[number][0]] = number
    layouts = np.rint(values[len(columns) :][: len(capacity.columns)]).astype(np.int64)
    used = sum((columns[number][2] for number in chosen), np.zeros(len(capacity.pools), dtype=np.int64))
    if min(chosen) < 0 or not capacity.has_room(used, layouts):
        return "unknown"
    return IntegerSolution(tuple(chosen), layouts)


def _stop_if_short(highs: Any) -> None:
    """Stop as soon as a slice is proven to be missing: how many are is of no interest."""

    def look(event: Any) -> None:
        if event.data_out.mip_dual_bound > SHORT:
            event.interrupt()

    highs.cbMipInterrupt.subscribe(look)


def _build_program(
    capacity: FleetCapacity,
    subsets: Flags,
    columns: Sequence[Column],
    allowed: Sequence[int],
    costs: Vector | None,
    *,
    whole: bool,
    max_cost: float = INF,
    prices: Vector | None = None,
    usable: NDArray[np.bool_] | None = None,
) -> Any:
    """The program; with `prices` of missing slices, in units of which they are paid for; of `usable` layouts alone."""
    models = subsets.shape[1]
    pools, count = len(capacity.pools), len(columns)
    available = np.concatenate([capacity.gpus, capacity.at_most])
    groups = len(available)
    layouts = len(capacity.columns)
    usage = np.array([column[2] for column in columns], dtype=np.float64).reshape(count, pools)
    owner = np.array([column[0] for column in columns], dtype=np.int64)
    reached = np.array([column[1] for column in columns])
    width = count + layouts + 1
    budget = models + pools + groups + len(allowed)
    rows = budget + (costs is not None)
    which, pool = np.nonzero(usage)
    parts = [
        (owner, np.arange(count), np.ones(count)),
        (models + pool, which, usage[which, pool]),
    ]
    pool, column = np.nonzero(capacity.slices)
    parts.append((models + pool, count + column, -capacity.slices[pool, column].astype(np.float64)))
    parts.append((models + pools + capacity.group_of, count + np.arange(layouts), np.ones(layouts)))
    parts.append(
        (models + pools + np.arange(groups), np.full(groups, width - 1), -available.astype(np.float64))
    )
    limit, column = np.nonzero(capacity.taken)
    taken = capacity.taken[limit, column].astype(np.float64)
    parts.append((models + pools + len(capacity.gpus) + limit, count + column, taken))
    for number in range(len(allowed)):
        under = np.flatnonzero((reached <= number) & subsets[number][owner])
        parts.append((np.full(len(under), models + pools + groups + number), under, np.ones(len(under))))
    if costs is not None:
        parts.append((np.full(layouts, budget), count + np.arange(layouts), costs))
    # The last columns: in the linear program a pattern at the highest level for each model, else missing slices.
    last = (pools if prices is not None else 0) if whole else models
    first, sign = (models, -1.0) if whole else (0, 1.0)
    parts.append((first + np.arange(last), width + np.arange(last), np.full(last, sign)))
    row, col, value = (np.concatenate([part[i] for part in parts]) for i in range(3))
    matrix = csc_from_entries(value, row, col, (rows, width + last))
    cost = np.zeros(width + last)
    lower_columns, upper = np.zeros(len(cost)), np.full(len(cost), INF)
    cost[width - 1], cost[width:] = 1.0, MISSING_COST
    if costs is not None:
        cost[count : width - 1], cost[width - 1] = costs, 0.0
        cost[width:] *= float(costs.max()) * float(capacity.gpus.sum())
    if prices is not None:
        cost[width - 1] = 0.0
        cost[width:] = np.maximum(prices / max(float(prices.max()), 1e-12), MIN_SHORTAGE_PRICE)
    if whole or costs is not None:
        lower_columns[width - 1] = upper[width - 1] = 1.0
    if whole:
        upper[:count] = 1.0
        upper[count : width - 1] = capacity.gpus[capacity.group_of] * (True if usable is None else usable)
    right = np.zeros(rows)
    right[:models] = 1.0
    right[models + pools + groups : budget] = allowed
    right[budget:] = max_cost
    lower = np.full(rows, -INF)
    lower[:models] = 1.0
    return load_program(
        "planner's master program",
        matrix,
        cost,
        columns=(lower_columns, upper),
        rows=(lower, right),
        integer=np.arange(width + last) != width - 1 if whole else None,
        relative_gap=RELATIVE_GAP,
    )
