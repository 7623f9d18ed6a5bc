"""Shares of pooled slices: the quick bound and the quick plan of fractional sharing.

Slices of one profile of equal GPUs are a pool of which a model may use any part. That relaxes the limits of a single
slice (memory of co-tenants, least shares, most tenants), so its value bounds every plan; if nothing limits a slice,
pooled shares pack without loss. Layouts are continuous first (a bound of every level together), then whole, then fixed
while the levels rise (share_program.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.patterns.capacity import FleetCapacity, fleet_capacity
from torchsplit_core.planning.patterns.share_program import OutOfScale, Share, ShareProgram, share_demand
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.request.objective import goal_of, has_tiers, requires_resilience
from torchsplit_core.solver.highs import INF, run, set_integrality

LEVEL_SCALE = 1000.0
"""The level to which the worst-served model is scaled in the program (see ShareProgram)."""

MINIMA_SLACK = 1e-6
"""Relative relaxation of the minima, so that a proof does not rest on the solver's tolerance."""

POOLED_SHARE = 0.15
"""Part of the time for whole layouts, which close no gap for long."""

NEGLIGIBLE_PART = 1e-6
"""Smaller parts of a slice are not used."""

ROUNDED = 1e-7
"""Distance from a whole number that the solver's tolerance explains."""

MIN_LEVEL = 1e-9
"""Smaller levels count as 0."""


@dataclass(frozen=True)
class AggregatedShares:
    """GPUs by (group, layout), shares by choice (its index), and bounds of the sorted levels.

    `level` (from 0) is the first level that no cap settles; `bound` bounds it. `prices` are the models' prices there,
    with the upper bound of their weighted sum, for later levels.
    """

    layouts: Mapping[tuple[int, int], int]
    amounts: Mapping[int, float]
    level: int
    bound: float
    prices: NDArray[np.float64]
    weighted_total: float

    def bound_after(self, level: int, reached: float) -> float:
        """A bound of a later level, if every model has at least `reached`.

        Σ prices·r ≤ weighed holds in every plan whose first levels are at their caps; the models below the level may be
        the dearest.
        """
        below = float(np.sort(self.prices)[::-1][: level - self.level].sum())
        rest = float(self.prices.sum()) - below
        return (self.weighted_total - reached * below) / rest if rest > 1e-12 else float("inf")


def aggregate_shares(problem: Problem, deadline: float) -> AggregatedShares | None:
    """The fairest pooled shares; None if the relaxation does not apply or finds none in time."""
    request = problem.request
    if not goal_of(request).fair or request.colocations or requires_resilience(request):
        return None
    if request.objective.memory_violation_penalty or has_tiers(request):
        return None
    capacity = fleet_capacity(problem)
    models = {case.model for case in problem.cases}
    if not len(capacity.pools) or len(models) < len(request.models):
        return None
    uses = _best_uses(problem, capacity)
    return share_pools(
        problem, capacity, [(use[2], problem.choices[use[3]], use[3]) for use in uses], deadline
    )


def share_pools(
    problem: Problem,
    capacity: FleetCapacity,
    uses: Sequence[tuple[int, Choice, int]],
    deadline: float,
    rounded: int = 0,
) -> AggregatedShares | None:
    """The fairest shares of these pools; None without any, or none in time.

    `uses`: pool, choice, and the number by which the result knows its share. `rounded`: so many first layout columns
    are divisible ones rounded up or down, where all together are too many, in as much time at least as those took, and
    no level is raised after the first.
    """
    owners = [case.model for case in problem.cases]
    shares = [Share(choice.case, choice.stage, pool, choice.rate_rps) for pool, choice, _ in uses]
    try:
        return _solve_shares(
            problem, capacity, owners, shares, [number for *_, number in uses], deadline, rounded
        )
    except OutOfScale:
        return None


def _solve_shares(
    problem: Problem,
    capacity: FleetCapacity,
    owners: Sequence[int],
    shares: Sequence[Share],
    numbers: Sequence[int],
    deadline: float,
    rounded: int,
) -> AggregatedShares | None:
    request = problem.request
    begun = time.perf_counter()
    slots = np.zeros(len(capacity.pools))
    demand = share_demand(request.models)
    scale_program = ShareProgram(demand, owners, shares, slots, capacity)
    if scale_program.raise_levels(stop_at_price=True) is None:
        return None
    unit = max(scale_program.value(scale_program.t), MIN_LEVEL) / LEVEL_SCALE
    program = ShareProgram(demand, owners, shares, slots, capacity, unit)
    raised = program.raise_levels(stop_at_price=True)
    if raised is None:
        return None
    _, rising = raised
    prices, weighed = _prices(program, rising)
    bound = program.value(program.t) if rising.any() else float("inf")
    if rounded:
        _round_near(program, rounded)
        deadline = max(deadline, 2 * time.perf_counter() - begun)
    if not _solve_integer_layouts(program, deadline):
        return None
    if rising.any() and not rounded:
        bound = min(bound, -float(program.highs.getInfo().mip_dual_bound))
    case_rates = program.values()[program.case_at : program.t]
    layouts = _fix_layouts(program)
    _fix_cases(program, case_rates)
    if program.raise_levels(stop_at_price=rounded > 0) is None:
        return None
    amounts = _round_latency_limited(problem, program)
    return AggregatedShares(
        {capacity.columns[number]: count for number, count in enumerate(layouts) if count},
        {number: float(part) for number, part in zip(numbers, amounts, strict=True) if part > 1e-9},
        int((~rising).sum()),
        bound * unit,
        prices,
        weighed * unit,
    )


def relaxation_meets_minima(problem: Problem) -> bool:
    """False if not even pooled shares of divisible layouts meet every minimum: a proof."""
    capacity = fleet_capacity(problem)
    demanded = {index for index, spec in enumerate(problem.request.models) if spec.min_throughput_rps}
    if not demanded <= {case.model for case in problem.cases}:
        return False
    uses = _best_uses(problem, capacity)
    shares = [Share(*use[:3], problem.choices[use[3]].rate_rps) for use in uses]
    owners = [case.model for case in problem.cases]
    try:
        program = ShareProgram(
            share_demand(problem.request.models), owners, shares, np.zeros(len(capacity.pools)), capacity
        )
    except OutOfScale:
        return True
    everyone = np.ones(len(problem.request.models), dtype=bool)
    program.set_floors(program.floors * (1 - MINIMA_SLACK), ~everyone)
    return run(program.highs) != "infeasible"


def _best_uses(problem: Problem, capacity: FleetCapacity) -> list[tuple[int, int, int, int]]:
    """(case, stage, pool, choice) with the most throughput of each stage on each pool."""
    row_of = {pool: row for row, pool in enumerate(capacity.pools)}
    best: dict[tuple[int, int, int], int] = {}
    for number, choice in enumerate(problem.choices):
        key = (choice.case, choice.stage, row_of[choice.group, choice.profile])
        known = best.get(key)
        if known is None or choice.rate_rps > problem.choices[known].rate_rps:
            best[key] = number
    return [(*key, number) for key, number in sorted(best.items())]


def _prices(program: ShareProgram, rising: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Prices π of the rising models and an upper bound of Σ π·r (linear programming duality)."""
    prices = np.where(rising, program.prices(), 0.0)
    total = float(prices.sum())
    return (prices / total, program.value(program.t)) if total > 0 else (prices, float("inf"))


def _solve_integer_layouts(program: ShareProgram, deadline: float) -> bool:
    layouts = np.arange(program.layout_at, program.case_at, dtype=np.int32)
    set_integrality(program.highs, layouts, True)
    return run(program.highs, max(0.03, deadline - time.perf_counter())) in ("optimal", "feasible")


def _round_near(program: ShareProgram, columns: int) -> None:
    """Have the first layout columns rounded, up or down from their divisible values."""
    first = program.layout_at
    for column, value in enumerate(program.values()[first : first + columns].tolist(), first):
        program.highs.changeColBounds(column, math.floor(value + ROUNDED), math.ceil(value - ROUNDED))


def _fix_layouts(program: ShareProgram) -> list[int]:
    values = program.values()
    layouts = np.arange(program.layout_at, program.case_at, dtype=np.int32)
    counts = np.rint(values[layouts])
    set_integrality(program.highs, layouts, False)
    program.highs.changeColsBounds(len(layouts), layouts, counts, counts)
    program.highs.setOptionValue("time_limit", INF)
    return [int(count) for count in counts]


def _round_latency_limited(problem: Problem, program: ShareProgram) -> NDArray[np.float64]:
    """The shares; those of models under a latency limit rounded up to whole slices, the others evened out.

    A latency limit requires large shares of a slice: fractions could not be packed.
    """
    amounts = program.amounts()
    limited = [
        number
        for number, share in enumerate(program.shares)
        if problem.cases[share.case].has_latency_levels and amounts[number] > NEGLIGIBLE_PART
    ]
    fractional = [number for number in limited if amounts[number] % 1 > NEGLIGIBLE_PART]
    for number in limited:
        whole = float(np.ceil(amounts[number] - NEGLIGIBLE_PART))
        program.highs.changeColBounds(number, whole, whole)
    if not fractional or program.raise_levels() is None:
        return amounts
    return program.amounts()


def _fix_cases(program: ShareProgram, case_rates: NDArray[np.float64]) -> None:
    """Choose for each model the variant with the highest rate; the others get nothing from here on."""
    best: dict[int, int] = {}
    for number, model in enumerate(program.owners):
        if model not in best or case_rates[number] > case_rates[best[model]]:
            best[model] = number
    for number, model in enumerate(program.owners):
        if best[model] != number:
            program.highs.changeColBounds(program.case_at + number, 0.0, 0.0)
    for number, share in enumerate(program.shares):
        if best[program.owners[share.case]] != share.case:
            program.highs.changeColBounds(number, 0.0, 0.0)
