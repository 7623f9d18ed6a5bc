"""Shares of pooled slices as a linear program: the quick bound and the quick plan of `fractional`.

Slices of one profile of equal GPUs are one pool, and a model may use any part of it. That
relaxes what a single slice can hold (memory of co-tenants, least shares, most tenants), so its
value bounds every plan; where nothing ties a slice together the pooled shares can be packed
without loss.

| row | formula |
|---|---|
| pool[p] | Σ_u∈p x[u] − Σ_c slices[p,c]·y[c] ≤ 0 |
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| stage[c,s] | v[c] − Σ_u∈(c,s) rate(u)/unit(m)·x[u] ≤ 0 |
| served[m] | Σ_c∈m v[c] ≥ the level the model is held at |
| rising[m] | Σ_c∈m v[c] − t ≥ 0 while the model still rises, t maximised |

First the layouts y are real (a bound of every level together), then whole, then held while the
levels rise one after the other: with continuous shares a model with a price stays where it is in
every best plan, so it may be held there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix

from torchsplit_core.planning.expand import Problem
from torchsplit_core.planning.patterns.supply import Supply, supply_of
from torchsplit_core.values import InternalFault

STUCK = 1e-9
"""Price above which a model cannot rise without another one falling."""

INFINITE = highspy.kHighsInf


@dataclass(frozen=True)
class PooledShares:
    """GPUs by (group, layout), shares by choice (its place), and bounds of the sorted levels.

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

        Σ prices·r ≤ weighed holds in every plan; the models below the level may be the dearest.
        """
        below = float(np.sort(self.prices)[::-1][: level - self.level].sum())
        rest = float(self.prices.sum()) - below
        return (self.weighed - reached * below) / rest if rest > 1e-12 else float("inf")


def pool_shares(problem: Problem, deadline: float) -> PooledShares | None:
    """The fairest pooled shares; None where it does not apply, or none were found in time."""
    request = problem.request
    gamma = request.objective.memory_violation_penalty
    if request.objective.kind not in ("leximin", "max_min") or request.colocations or gamma:
        return None
    supply = supply_of(problem)
    if not len(supply.pools) or any(
        all(case.model != index for case in problem.cases) for index in range(len(request.models))
    ):
        return None
    return _Program(problem, supply).run(deadline)


class _Program:
    """The linear program and what is fixed in it so far."""

    def __init__(self, problem: Problem, supply: Supply) -> None:
        self.problem, self.supply = problem, supply
        specs = problem.request.models
        self.units = np.array([spec.weight * spec.demand_rps for spec in specs])
        self.caps = (
            np.array([spec.demand_rps if spec.cap_at_demand else np.inf for spec in specs]) / self.units
        )
        self.floors = np.array([spec.min_throughput_rps or 0.0 for spec in specs]) / self.units
        self.uses = _best_uses(problem, supply)
        self.columns = len(self.uses)
        self.layout_at, self.case_at = self.columns, self.columns + len(supply.columns)
        self.t = self.case_at + len(problem.cases)
        self.highs = self._load()

    def run(self, deadline: float) -> PooledShares | None:
        held, rising = self._rise(stop_at_price=True)
        if held is None:
            return None
        prices, weighed = self._prices(held, rising)
        level = int(sum(~rising))
        bound = self._value(self.t)
        if not self._whole_layouts(held, rising, deadline):
            return None
        bound = min(bound, float(self.highs.getInfo().mip_dual_bound) * -1.0)
        self._fix_layouts()
        self._choose_cases()
        if self._rise(stop_at_price=False)[0] is None:
            return None
        values = np.array(self.highs.getSolution().col_value)
        layouts = {
            self.supply.columns[c]: round(values[self.layout_at + c])
            for c in range(len(self.supply.columns))
            if round(values[self.layout_at + c])
        }
        amounts = {use[3]: float(values[i]) for i, use in enumerate(self.uses) if values[i] > 1e-9}
        return PooledShares(layouts, amounts, level, bound, prices, weighed)

    def _rise(self, *, stop_at_price: bool) -> tuple[NDArray[np.float64] | None, NDArray[np.bool_]]:
        """Raise all models together; those at their cap or stuck are held. `stop_at_price`: until the first stuck."""
        count = len(self.units)
        held, rising = self.floors.copy(), np.ones(count, dtype=bool)
        while rising.any():
            self._levels(held, rising)
            self.highs.run()
            if self.highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                return None, rising
            level = self._value(self.t)
            capped = rising & (self.caps <= level * (1 + 1e-9))
            if capped.any():
                held[capped] = np.maximum(held[capped], self.caps[capped])
                rising &= ~capped
                continue
            if stop_at_price:
                return held, rising
            stuck = rising & (self._duals() > STUCK)
            if not stuck.any():
                break
            held[stuck] = np.maximum(held[stuck], level * (1 - 1e-10))
            rising &= ~stuck
        return held, rising

    def _prices(
        self, held: NDArray[np.float64], rising: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], float]:
        """Prices π of the rising models and a number that Σ π·r never passes (linear programming duality)."""
        if not rising.any():
            return np.zeros(len(self.units)), 0.0
        prices = np.where(rising, np.maximum(self._duals(), 0.0), 0.0)
        total = float(prices.sum())
        level = self._value(self.t)
        return (prices / total, level) if total > 0 else (prices, float("inf"))

    def _whole_layouts(self, held: NDArray[np.float64], rising: NDArray[np.bool_], deadline: float) -> bool:
        self._levels(held, rising)
        layouts = np.arange(self.layout_at, self.case_at, dtype=np.int32)
        self.highs.changeColsIntegrality(
            len(layouts), layouts, np.full(len(layouts), highspy.HighsVarType.kInteger)
        )
        self.highs.setOptionValue("time_limit", max(0.03, deadline - time.perf_counter()))
        self.highs.run()
        return bool(
            self.highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        )

    def _fix_layouts(self) -> None:
        values = self.highs.getSolution().col_value
        self._case_rates = np.array(values[self.case_at : self.t])
        layouts = np.arange(self.layout_at, self.case_at, dtype=np.int32)
        whole = np.rint(np.array(values[self.layout_at : self.case_at]))
        self.highs.changeColsIntegrality(
            len(layouts), layouts, np.full(len(layouts), highspy.HighsVarType.kContinuous)
        )
        self.highs.changeColsBounds(len(layouts), layouts, whole, whole)
        self.highs.setOptionValue("time_limit", INFINITE)

    def _choose_cases(self) -> None:
        """Of each model the variant that carries most; the others give nothing from here on."""
        best: dict[int, int] = {}
        for number, case in enumerate(self.problem.cases):
            if case.model not in best or self._case_rates[number] > self._case_rates[best[case.model]]:
                best[case.model] = number
        for number, case in enumerate(self.problem.cases):
            if best[case.model] != number:
                self.highs.changeColBounds(self.case_at + number, 0.0, 0.0)
        for i, (case_number, _, _, _) in enumerate(self.uses):
            if best[self.problem.cases[case_number].model] != case_number:
                self.highs.changeColBounds(i, 0.0, 0.0)

    def _levels(self, held: NDArray[np.float64], rising: NDArray[np.bool_]) -> None:
        for model in range(len(self.units)):
            self.highs.changeRowBounds(self.served_at + model, float(held[model]), INFINITE)
            self.highs.changeRowBounds(self.rising_at + model, 0.0 if rising[model] else -INFINITE, INFINITE)

    def _value(self, column: int) -> float:
        return float(self.highs.getSolution().col_value[column])

    def _duals(self) -> NDArray[np.float64]:
        rows = np.array(self.highs.getSolution().row_dual)
        prices: NDArray[np.float64] = np.abs(rows[self.rising_at : self.rising_at + len(self.units)])
        return prices

    def _load(self) -> Any:
        supply, problem = self.supply, self.problem
        pools, groups = len(supply.pools), len(supply.gpus)
        stages: dict[tuple[int, int], int] = {}
        for case_number, stage, _, _ in self.uses:
            stages.setdefault((case_number, stage), pools + groups + len(stages))
        self.served_at = pools + groups + len(stages)
        self.rising_at = self.served_at + len(self.units)
        rows = self.rising_at + len(self.units)
        entries: list[tuple[int, int, float]] = []
        for i, (case_number, stage, pool, choice) in enumerate(self.uses):
            unit = self.units[problem.cases[case_number].model]
            entries.append((pool, i, 1.0))
            entries.append(
                (stages[case_number, stage], i, -problem.choices[choice].point.throughput_rps / unit)
            )
        for column, group in enumerate(supply.group_of.tolist()):
            for pool in np.flatnonzero(supply.slices[:, column]).tolist():
                entries.append((pool, self.layout_at + column, -float(supply.slices[pool, column])))
            entries.append((pools + group, self.layout_at + column, 1.0))
        for (case_number, _), row in stages.items():
            entries.append((row, self.case_at + case_number, 1.0))
        for case_number, case in enumerate(problem.cases):
            entries.append((self.served_at + case.model, self.case_at + case_number, 1.0))
            entries.append((self.rising_at + case.model, self.case_at + case_number, 1.0))
        for model in range(len(self.units)):
            entries.append((self.rising_at + model, self.t, -1.0))
        return _highs(rows, self.t + 1, entries, supply, self.served_at)


def _best_uses(problem: Problem, supply: Supply) -> list[tuple[int, int, int, int]]:
    """(case, stage, pool, choice) with the most throughput of each stage on each pool."""
    case_of = {(case.model, case.variant): number for number, case in enumerate(problem.cases)}
    place = {pool: row for row, pool in enumerate(supply.pools)}
    best: dict[tuple[int, int, int], int] = {}
    for number, choice in enumerate(problem.choices):
        key = (case_of[choice.model, choice.variant], choice.stage, place[choice.group, choice.profile])
        known = best.get(key)
        if known is None or choice.point.throughput_rps > problem.choices[known].point.throughput_rps:
            best[key] = number
    return [(*key, number) for key, number in sorted(best.items())]


def _highs(
    rows: int, columns: int, entries: Sequence[tuple[int, int, float]], supply: Supply, served_at: int
) -> Any:
    row, column, value = zip(*entries, strict=True)
    matrix = csc_matrix((value, (row, column)), shape=(rows, columns))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    cost = np.zeros(columns)
    cost[-1] = -1.0
    lp.col_cost_, lp.col_lower_ = cost, np.zeros(columns)
    lp.col_upper_ = np.full(columns, INFINITE)
    lower, upper = np.full(rows, -INFINITE), np.zeros(rows)
    pools = len(supply.pools)
    upper[pools : pools + len(supply.gpus)] = supply.gpus
    lower[served_at:], upper[served_at:] = 0.0, INFINITE
    lp.row_lower_, lp.row_upper_ = lower, upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = matrix.data
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    highs.setOptionValue("mip_rel_gap", 1e-7)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise InternalFault("HiGHS refused the planner's pooled program.")
    return highs
