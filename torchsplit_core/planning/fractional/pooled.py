"""Shares of pooled slices: the quick bound and the quick plan of `fractional`.

Slices of one profile of equal GPUs are one pool, and a model may use any part of it. That
relaxes what a single slice can hold (memory of co-tenants, least shares, most tenants), so its
value bounds every plan; where nothing ties a slice together the pooled shares can be packed
without loss. First the layouts are real (a bound of every level together), then whole, then
held while the levels rise (share_program.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.fractional.share_program import OutOfScale, Share, ShareProgram
from torchsplit_core.planning.patterns.supply import Supply, supply_of
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.objective import goal_of, must_survive, tiered
from torchsplit_core.solver.highs import INF, run, set_integrality

DIGITS = 1000.0
"""The level at which the worst-served model is kept in the program (see ShareProgram)."""

SURELY = 1e-6
"""Relative easing of the minima, so that a proof does not rest on the solver's tolerance."""

NEGLIGIBLE = 1e-6
"""Part of a slice that is not worth one."""

TINY = 1e-9
"""Least level that is still told from 0."""


@dataclass(frozen=True)
class PooledShares:
    """GPUs by (group, layout), shares by choice (its index), and bounds of the sorted levels.

    `level` (from 0) is the first level that no cap settles; `bound` bounds it, and `prices` are
    the models' prices there with the sum they weigh to at most, for the levels after it.
    """

    layouts: Mapping[tuple[int, int], int]
    amounts: Mapping[int, float]
    level: int
    bound: float
    prices: NDArray[np.float64]
    weighed: float

    def bound_after(self, level: int, reached: float) -> float:
        """A bound of a later level, where every model has at least `reached`.

        Σ prices·r ≤ weighed holds in every plan whose first levels are at their caps; the models
        below the level may be the dearest.
        """
        below = float(np.sort(self.prices)[::-1][: level - self.level].sum())
        rest = float(self.prices.sum()) - below
        return (self.weighed - reached * below) / rest if rest > 1e-12 else float("inf")


def pool_shares(problem: Problem, deadline: float) -> PooledShares | None:
    """The fairest pooled shares; None where it does not apply, or none were found in time."""
    request = problem.request
    if not goal_of(request).fair or request.colocations or must_survive(request):
        return None
    if request.objective.memory_violation_penalty or tiered(request):
        return None
    supply = supply_of(problem)
    models = {case.model for case in problem.cases}
    if not len(supply.pools) or len(models) < len(request.models):
        return None
    uses = _best_uses(problem, supply)
    shares = [Share(*use[:3], problem.choices[use[3]].rate_rps) for use in uses]
    owners = [case.model for case in problem.cases]
    try:
        return _fairest(problem, supply, uses, owners, shares, deadline)
    except OutOfScale:
        return None


def _fairest(
    problem: Problem,
    supply: Supply,
    uses: Sequence[tuple[int, int, int, int]],
    owners: Sequence[int],
    shares: Sequence[Share],
    deadline: float,
) -> PooledShares | None:
    request = problem.request
    slots = np.zeros(len(supply.pools))
    rough = ShareProgram(request.models, owners, shares, slots, supply)
    if rough.rise(stop_at_price=True) is None:
        return None
    unit = max(rough.value(rough.t), TINY) / DIGITS
    program = ShareProgram(request.models, owners, shares, slots, supply, unit)
    risen = program.rise(stop_at_price=True)
    if risen is None:
        return None
    _, rising = risen
    prices, weighed = _prices(program, rising)
    bound = program.value(program.t) if rising.any() else float("inf")
    if not _whole_layouts(program, deadline):
        return None
    if rising.any():
        bound = min(bound, -float(program.highs.getInfo().mip_dual_bound))
    carried = np.array(program.highs.getSolution().col_value[program.case_at : program.t])
    layouts = _hold_layouts(program)
    _hold_cases(program, carried)
    if program.rise() is None:
        return None
    amounts = _whole_where_limited(problem, program)
    return PooledShares(
        {supply.columns[number]: count for number, count in enumerate(layouts) if count},
        {use[3]: float(part) for use, part in zip(uses, amounts, strict=True) if part > 1e-9},
        int((~rising).sum()),
        bound * unit,
        prices,
        weighed * unit,
    )


def pooled_minima(problem: Problem) -> bool:
    """False where not even pooled shares of divisible layouts can meet every minimum: a proof."""
    supply = supply_of(problem)
    demanded = {index for index, spec in enumerate(problem.request.models) if spec.min_throughput_rps}
    if not demanded <= {case.model for case in problem.cases}:
        return False
    uses = _best_uses(problem, supply)
    shares = [Share(*use[:3], problem.choices[use[3]].rate_rps) for use in uses]
    owners = [case.model for case in problem.cases]
    try:
        program = ShareProgram(problem.request.models, owners, shares, np.zeros(len(supply.pools)), supply)
    except OutOfScale:
        return True
    everyone = np.ones(len(problem.request.models), dtype=bool)
    program.hold(program.floors * (1 - SURELY), ~everyone)
    return run(program.highs) != "infeasible"


def _best_uses(problem: Problem, supply: Supply) -> list[tuple[int, int, int, int]]:
    """(case, stage, pool, choice) with the most throughput of each stage on each pool."""
    row_of = {pool: row for row, pool in enumerate(supply.pools)}
    best: dict[tuple[int, int, int], int] = {}
    for number, choice in enumerate(problem.choices):
        key = (choice.case, choice.stage, row_of[choice.group, choice.profile])
        known = best.get(key)
        if known is None or choice.rate_rps > problem.choices[known].rate_rps:
            best[key] = number
    return [(*key, number) for key, number in sorted(best.items())]


def _prices(program: ShareProgram, rising: NDArray[np.bool_]) -> tuple[NDArray[np.float64], float]:
    """Prices π of the rising models and a number that Σ π·r never passes (linear programming duality)."""
    prices = np.where(rising, program.prices(), 0.0)
    total = float(prices.sum())
    return (prices / total, program.value(program.t)) if total > 0 else (prices, float("inf"))


def _whole_layouts(program: ShareProgram, deadline: float) -> bool:
    layouts = np.arange(program.layout_at, program.case_at, dtype=np.int32)
    set_integrality(program.highs, layouts, True)
    return run(program.highs, max(0.03, deadline - time.perf_counter())) in ("optimal", "feasible")


def _hold_layouts(program: ShareProgram) -> list[int]:
    values = np.array(program.highs.getSolution().col_value)
    layouts = np.arange(program.layout_at, program.case_at, dtype=np.int32)
    counts = np.rint(values[layouts])
    set_integrality(program.highs, layouts, False)
    program.highs.changeColsBounds(len(layouts), layouts, counts, counts)
    program.highs.setOptionValue("time_limit", INF)
    return [int(count) for count in counts]


def _whole_where_limited(problem: Problem, program: ShareProgram) -> NDArray[np.float64]:
    """The shares, those of models under a latency limit rounded up to whole slices and the others evened out.

    A fraction of a slice would have to be a large one for them: it could not be packed.
    """
    amounts = program.amounts()
    limited = [
        number
        for number, share in enumerate(program.shares)
        if problem.cases[share.case].levels and amounts[number] > NEGLIGIBLE
    ]
    fractional = [number for number in limited if amounts[number] % 1 > NEGLIGIBLE]
    for number in limited:
        whole = float(np.ceil(amounts[number] - NEGLIGIBLE))
        program.highs.changeColBounds(number, whole, whole)
    if not fractional or program.rise() is None:
        return amounts
    return program.amounts()


def _hold_cases(program: ShareProgram, carried: NDArray[np.float64]) -> None:
    """Of each model the variant that carries most; the others give nothing from here on."""
    best: dict[int, int] = {}
    for number, model in enumerate(program.owners):
        if model not in best or carried[number] > carried[best[model]]:
            best[model] = number
    for number, model in enumerate(program.owners):
        if best[model] != number:
            program.highs.changeColBounds(program.case_at + number, 0.0, 0.0)
    for number, share in enumerate(program.shares):
        if best[program.owners[share.case]] != share.case:
            program.highs.changeColBounds(number, 0.0, 0.0)
