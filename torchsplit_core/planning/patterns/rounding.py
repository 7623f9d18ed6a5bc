"""Plans beside the linear program's: whole amounts next to the parts of patterns that it mixes.

On large fleets a good pattern of a model lies between those of its mix, and of the many there only few are ever listed.
So slices, and GPUs of co-located sets, are counted here, each within `WIDTH` of the mix:

| row | formula |
|---|---|
| pool[p] | Σ usage[m,i,p]·x[m,i] ≤ Σ_c slices[p,c]·y[c] + s[p] |
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| limit[l] | Σ_c taken[l,c]·y[c] ≤ at_most[l] |
| reach[m,r] | Σ_i share[m,i,r]·x[m,i] ≥ 1 for every stage, or member of a set |

The least Σ price[p]·s[p] of missing slices is sought; with costs of GPUs the least Σ_c cost[c]·y[c], and none is
missing. That no plan is found proves nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from torchsplit_core.planning.patterns.capacity import FleetCapacity, Vector
from torchsplit_core.planning.patterns.feasibility import (
    Decision,
    FeasibilityProblem,
    PatternPlan,
    PatternSearch,
)
from torchsplit_core.planning.patterns.master import (
    MIN_SHORTAGE_PRICE,
    Flags,
    solve_relaxation,
)
from torchsplit_core.planning.patterns.mixture import PART, Mixture, PatternPart
from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run

WIDTH, LAYOUT_WIDTH = 1, 2
"""How far an amount, or the GPUs with a layout, may be from the linear program's, rounded either way."""

MIN_GPUS = 16
"""GPUs below which whole plans are far from the parts that the linear program mixes."""

MIN_ROUND_S, ROUND_SHARE = 0.5, 0.05
"""Seconds of a search, and its part of the remaining time."""


def seek_plan(
    search: PatternSearch, problem: FeasibilityProblem, deadline: float, most: int = 0, enough: float = 0.0
) -> Decision:
    """A plan beside the linear program's, else one of patterns (`PatternSearch.decide` without a proof)."""
    beside = plan_beside(search, problem, deadline, enough)
    return beside or search.decide(problem, deadline, prove=False, enough=enough, most=most)


def plan_beside(
    search: PatternSearch, problem: FeasibilityProblem, deadline: float, enough: float = 0.0
) -> Decision | None:
    """A plan beside the linear program's; None: none was found, or there are too few GPUs."""
    if int(search.capacity.gpus.sum()) < MIN_GPUS:
        return None
    zeta = search.fleet_share(problem, deadline, enough)
    if zeta is None or zeta != zeta:
        return None
    left = deadline - time.perf_counter()
    plan = round_relaxation(search, problem, min(left, max(MIN_ROUND_S, ROUND_SHARE * left)))
    return None if plan is None else Decision("found", plan, zeta)


def round_relaxation(
    search: PatternSearch,
    problem: FeasibilityProblem,
    seconds: float,
    costs: Vector | None = None,
    max_cost: float = INF,
) -> PatternPlan | None:
    """A plan beside the linear program's over the known patterns, found in these seconds; None: none was found.

    With `costs` (of a GPU by layout column) the cheapest, which costs at most `max_cost`.
    """
    known = search.known_patterns(problem)
    subsets = search.subset_flags(problem)
    columns = [(model, level, pattern.usage) for model, level, pattern in known]
    duals = solve_relaxation(search.capacity, subsets, columns, problem.allowed, costs)
    parts: list[list[PatternPart]] = [[] for _ in search.options]
    above = np.zeros((len(problem.allowed), len(search.options)))
    for (model, level, pattern), part in zip(known, duals.parts.tolist(), strict=True):
        if part > PART:
            parts[model].append((part, pattern))
            above[:level, model] += part
    levels = _levels_of(above, problem, subsets)
    mixtures: list[Mixture] = []
    for model, level in enumerate(levels):
        mixture = search.mix(model, parts[model], problem.levels[level]) if parts[model] else None
        if mixture is None:
            return None
        mixtures.append(mixture)
    plan = _solve(search.capacity, mixtures, duals.gpus, search.prices, seconds, costs, max_cost)
    if plan is None or any(
        search.reached_level(model, pattern, problem) < levels[model]
        for model, pattern in enumerate(plan.patterns)
    ):
        return None
    for model, pattern in enumerate(plan.patterns):
        search.take_pattern(model, pattern)
    return plan


def _levels_of(above: Vector, problem: FeasibilityProblem, subsets: Flags) -> list[int]:
    """A level for every model, near to the mixes, of which no more stay below another than may.

    `above[i, m]`: the part of model m's mix that is not below level i + 1.
    """
    levels = np.zeros(subsets.shape[1], dtype=np.int64)
    for number, allowed in enumerate(problem.allowed):
        models = np.flatnonzero(subsets[number])
        rank = np.argsort(-above[number, models], kind="stable")
        levels[models[rank[: max(0, len(models) - allowed)]]] = number + 1
    return [int(level) for level in levels]


def _solve(
    capacity: FleetCapacity,
    mixtures: Sequence[Mixture],
    gpus: Vector,
    prices: Vector,
    seconds: float,
    costs: Vector | None,
    max_cost: float,
) -> PatternPlan | None:
    amounts = np.concatenate([mixture.amounts for mixture in mixtures])
    most = np.concatenate([mixture.most for mixture in mixtures])
    usage = np.concatenate([mixture.usage for mixture in mixtures])
    ends = np.cumsum([len(mixture.amounts) for mixture in mixtures])
    count, columns, pools = len(amounts), len(capacity.columns), len(capacity.pools)
    fleet = np.concatenate([capacity.gpus, capacity.at_most])
    taken = np.concatenate([np.arange(len(capacity.gpus))[:, None] == capacity.group_of, capacity.taken])
    item, pool = np.nonzero(usage)
    parts = [(pool, item, usage[item, pool])]
    pool, column = np.nonzero(capacity.slices)
    parts.append((pool, count + column, -capacity.slices[pool, column]))
    limit, column = np.nonzero(taken)
    parts.append((pools + limit, count + column, taken[limit, column]))
    row = pools + len(fleet)
    for mixture, end in zip(mixtures, ends.tolist(), strict=True):
        item, need = np.nonzero(mixture.shares)
        parts.append((row + need, end - len(mixture.amounts) + item, mixture.shares[item, need]))
        row += mixture.shares.shape[1]
    needs = row - pools - len(fleet)
    lower = np.concatenate([
        np.minimum(np.maximum(np.floor(amounts + PART) - WIDTH, 0.0), most),
        np.maximum(np.floor(gpus + PART) - LAYOUT_WIDTH, 0.0),
    ])  # fmt: skip
    upper = np.concatenate([
        np.minimum(np.ceil(amounts - PART) + WIDTH, most),
        np.ceil(gpus - PART) + LAYOUT_WIDTH,
    ])  # fmt: skip
    at_least = np.concatenate([np.full(pools + len(fleet), -INF), np.ones(needs)])
    at_most = np.concatenate([np.zeros(pools), fleet, np.full(needs, INF)])
    if costs is None:
        parts.append((np.arange(pools), count + columns + np.arange(pools), np.full(pools, -1.0)))
        shortage = np.maximum(prices / max(float(prices.max()), 1e-12), MIN_SHORTAGE_PRICE)
        cost = np.concatenate([np.zeros(count + columns), shortage])
        lower, upper = np.append(lower, np.zeros(pools)), np.append(upper, np.full(pools, INF))
    else:
        parts.append((np.full(columns, row), count + np.arange(columns), costs))
        cost = np.concatenate([np.zeros(count), costs])
        at_least, at_most = np.append(at_least, -INF), np.append(at_most, max_cost)
    rows, places, values = (np.concatenate([part[i] for part in parts]) for i in range(3))
    highs = load_program(
        "planner's program beside its relaxation",
        csc_from_entries(values, rows, places, (len(at_most), len(cost))),
        cost,
        columns=(lower, upper),
        rows=(at_least, at_most),
        integer=np.ones(len(cost), dtype=np.bool_),
    )
    if run(highs, max(seconds, 0.02)) not in ("optimal", "feasible"):
        return None
    numbers = np.rint(highs.getSolution().col_value).astype(np.int64)
    if numbers[count + columns :].any():
        return None
    patterns = tuple(
        mixture.build(chosen)
        for mixture, chosen in zip(mixtures, np.split(numbers[:count], ends[:-1]), strict=True)
    )
    layouts = numbers[count : count + columns]
    used = sum((pattern.usage for pattern in patterns), np.zeros(pools, dtype=np.int64))
    return PatternPlan(patterns, layouts) if capacity.has_room(used, layouts) else None
