"""A bound of the objective's first level in milliseconds at any scale, with GPUs and slices divisible.

The linear relaxation gives prices; the bound is computed from the prices alone (weak duality), so it holds
regardless of the solver's tolerances. With λ[c,s] ≥ 0 the price of a request/s of stage s of case c (a variant that
can run), p[m] = min over m's cases of Σ_s λ[c,s], and V[g] the largest value of a layout of a GPU of group g (each
slice at its dearest use):

    Σ_m p[m]·T[m] ≤ Σ_g GPUs[g]·V[g].

For a fair objective, min r ≤ Σ α[m]·r[m] with Σ α = 1 (with tiers: over the models of the highest tier, where
throughput above the demand does not count); a capped model counts α·cap above its price, a minimum T ≥ least subtracts
(p − α)·least. A sum of throughputs is the same with the models' gains for α. A cost is the same with α = 0, and V[g]
pays for the GPU first: cost ≥ Σ p[m]·least[m] − Σ_g GPUs[g]·max(0, V[g] − cost[g]).

A later level k of leximin, the ones before it being known to be best: the sum of the k least r is at most Σ α[m]·r[m]
with 0 ≤ α ≤ 1 and Σ α = k, and the known levels are subtracted from its bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchsplit_core.planning.patterns.capacity import fleet_worth, limits_by_group
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import (
    TierGroup,
    goal_of,
    level_positions,
    tier_groups,
    unit_rps,
)
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values import PlanRequest

StagePrices = Mapping[tuple[int, int], float]
"""Prices of a request/s (in units of the model's r) by case and stage."""


@dataclass(frozen=True)
class RelaxationBound:
    """The bound (a lower one if the objective is a cost), and the prices that prove it."""

    bound: float
    prices: StagePrices


def relaxation_bound(
    request: PlanRequest, seconds: float, before: Sequence[float] = ()
) -> RelaxationBound | None:
    """The relaxation of a valid request; None if the linear program is not solved in time.

    The bound is of the first level, or of the one after the levels `before` of a leximin request, which are the best.
    """
    problem = build_problem(request)
    tier_group, position = tier_groups(request.models)[0], 1
    if before:
        tier_group, position = level_positions(request.models)[len(before)]
    solved = _solve_relaxation(problem, seconds, tier_group, position)
    if solved is None:
        return None
    prices, weights = solved
    total = _bound(problem, prices, weights)
    if goal_of(request).fair:
        total = min(total, position * tier_group.cap) - sum(before[len(before) - position + 1 :])
    return RelaxationBound(total, prices)


def layout_value(counts: Mapping[str, int], highest_priced: Mapping[str, float]) -> float:
    """The value of a layout, each slice at its dearest use."""
    return sum(count * highest_priced.get(name, 0.0) for name, count in counts.items())


def highest_priced_uses(problem: Problem, prices: StagePrices) -> list[dict[str, float]]:
    """For each group the dearest use of a slice of each profile."""
    units = _units(problem)
    by_group: list[dict[str, float]] = [{} for _ in problem.groups]
    for choice in problem.choices:
        price = prices.get((choice.case, choice.stage), 0.0)
        value = price * choice.rate_rps / units[choice.model]
        by_profile = by_group[choice.group]
        by_profile[choice.profile] = max(by_profile.get(choice.profile, 0.0), value)
    return by_group


def _units(problem: Problem) -> list[float]:
    return [unit_rps(spec) for spec in problem.request.models]


def _bound(problem: Problem, prices: StagePrices, weights: Sequence[float]) -> float:
    request, units = problem.request, _units(problem)
    goal = goal_of(request)
    prices = dict(prices)
    total = 0.0
    for index, spec in enumerate(request.models):
        cases = [(case_number, case) for case_number, case in enumerate(problem.cases) if case.model == index]
        sums = [sum(prices.get((case_number, s), 0.0) for s in range(c.stages)) for case_number, c in cases]
        price = min(sums, default=0.0)
        least = (spec.min_throughput_rps or 0.0) / units[index]
        weight = weights[index]
        if not cases:
            # No throughput to price: a minimum would be infeasible.
            continue
        if price >= weight:
            total -= (price - weight) * least
        elif spec.cap_at_demand:
            total += (weight - price) * spec.demand_rps / units[index]
        else:
            # Prices too low to cover the weight prove nothing: raise them until they do.
            for (case_number, case), known in zip(cases, sums, strict=True):
                for stage in range(case.stages):
                    key = (case_number, stage)
                    raised = prices.get(key, 0.0) * weight / known if known else weight / case.stages
                    prices[key] = max(raised, prices.get(key, 0.0))
    worth = np.zeros(len(problem.groups))
    for g, highest_priced in enumerate(highest_priced_uses(problem, prices)):
        group = problem.groups[g]
        most = max(
            (layout_value(layout.usable_counts, highest_priced) for layout in group.layouts), default=0.0
        )
        worth[g] = max(0.0, most - (group.cost if goal.by_cost else 0.0))
    gpus = np.array([len(group.gpu_ids) for group in problem.groups], dtype=np.int64)
    total += fleet_worth(worth, gpus, *limits_by_group(problem))
    return max(0.0, -total if goal.minimised else total)


def _solve_relaxation(
    problem: Problem, seconds: float, tier_group: TierGroup, position: int
) -> tuple[StagePrices, list[float]] | None:
    """The dual prices of the relaxation, and α by model: for a fair objective of the `position` least r of a group."""
    request, units = problem.request, _units(problem)
    models = range(len(request.models))
    goal = goal_of(request)
    program = RowProgram()
    y = {
        (g, number): program.add_columns([group.cost if goal.by_cost else 0.0], [INF])
        for g, group in enumerate(problem.groups)
        for number in range(len(group.layouts))
    }
    x = [program.add_columns([0.0], [INF]) for _ in problem.choices]
    v = [program.add_columns([0.0], [INF]) for _ in problem.cases]
    gains = [goal.gain(spec) * units[m] for m, spec in enumerate(request.models)]
    caps = [
        spec.demand_rps / units[m] if spec.cap_at_demand else INF for m, spec in enumerate(request.models)
    ]
    r = [program.add_columns([-gains[m]], [caps[m]]) for m in models]
    # The sum of the k least r is the largest k · t − Σ below[m] with r[m] ≥ t − below[m].
    t = program.add_columns([-float(position) if goal.fair else 0.0], [INF])
    for g, group in enumerate(problem.groups):
        _add_at_most(program, float(len(group.gpu_ids)), {y[g, n]: 1.0 for n in range(len(group.layouts))})
    for limit in problem.limits:
        taken = {
            y[g, n]: float(count) for g, count in limit.takes for n in range(len(problem.groups[g].layouts))
        }
        _add_at_most(program, float(limit.most), taken)
    pools: dict[tuple[int, str], dict[int, float]] = {}
    rates: dict[tuple[int, int], dict[int, float]] = {}
    for number, choice in enumerate(problem.choices):
        pools.setdefault((choice.group, choice.profile), {})[x[number]] = 1.0
        rate = choice.rate_rps / units[choice.model]
        rates.setdefault((choice.case, choice.stage), {})[x[number]] = -rate
    for (g, profile), members in pools.items():
        for number, layout in enumerate(problem.groups[g].layouts):
            members[y[g, number]] = -float(layout.usable_counts.get(profile, 0))
        _add_at_most(program, 0.0, members)
    staged: dict[tuple[int, int], int] = {}
    for number, case in enumerate(problem.cases):
        for stage in range(case.stages):
            key = (number, stage)
            staged[key] = _add_at_most(program, 0.0, {v[number]: 1.0, **rates.get(key, {})})
    fair_rows = []
    for m, spec in enumerate(request.models):
        case_columns = {v[number]: -1.0 for number, case in enumerate(problem.cases) if case.model == m}
        _add_at_most(program, 0.0, {r[m]: 1.0, **case_columns})
        if spec.min_throughput_rps:
            _add_at_most(program, -spec.min_throughput_rps / units[m], case_columns)
        if m in tier_group.models:
            least = {t: 1.0, r[m]: -1.0}
            if position > 1:
                least[program.add_columns([1.0], [INF])] = -1.0
            fair_rows.append(_add_at_most(program, 0.0, least))
    try:
        duals = program.duals(max(0.02, seconds))
    except ProgramRejected:
        return None
    if duals is None:
        return None
    prices = {key: abs(float(duals[row])) for key, row in staged.items()}
    if not goal.fair:
        return prices, gains
    shares = [abs(float(duals[row])) for row in fair_rows]
    total = sum(shares)
    scaled = [position * share / total if total else position / len(shares) for share in shares]
    # A weight counts up to 1; what that leaves of the sum is added to each.
    missing = position - sum(min(1.0, share) for share in scaled)
    weights = [0.0] * len(models)
    for m, share in zip(tier_group.models, scaled, strict=True):
        weights[m] = min(1.0, share) + missing
    return prices, weights


def _add_at_most(program: RowProgram, limit: float, entries: Mapping[int, float]) -> int:
    return program.add_row(-INF, limit, list(entries), list(entries.values()))
