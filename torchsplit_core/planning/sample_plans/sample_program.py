"""Which samples are held, as an integer program over levels of throughput.

| row | formula |
|---|---|
| chain[m,l] | z[m,l] ≤ z[m,l−1] |
| implied[k,m] | y[k] ≤ z[m, level of k] |
| share | Σ weight[k]·y[k] ≥ required |
| cost[c] | θ ≥ Σ_m price of level(m) at the prices c − what unused GPUs save |
| fleet[c] | Σ_m price of level(m) at the prices c ≤ what the fleet is worth |
| refused[r] | Σ_m z[m, level of r] ≤ models in r − 1 |

z[m,l] says whether model m has level l, y[k] whether class k is held: the rows of `implied` are facets of the pairs
(J. Luedtke, S. Ahmed and G. Nemhauser, An integer programming approach for linear programs with probabilistic
constraints, 2010). The price of a level is that of the cheapest slices which reach it, so the rows of prices hold for
every plan; a refused point is one whose minima no plan, or no better plan, meets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.sample_plans.price_rows import PriceRow
from torchsplit_core.planning.sample_plans.sample_levels import Rates, SampleLevels
from torchsplit_core.solver.highs import INF
from torchsplit_core.solver.row_program import RowProgram, RowSolution
from torchsplit_core.values.status import ProgramStatus

SHARE_ROUNDING = 1e-6
"""Part of a sample by which the solver may miss the required number."""


RELAXED_SHARE = 0.2
"""Part of a program's seconds for its linear relaxation, if it has no solution in the others."""

SLIGHT = 0.01
"""What all levels cost together in units of a step of the cost, or of a sample, beside their prices."""


@dataclass(frozen=True)
class SamplePoint:
    """A solution: the classes held (None: there is none), and a bound of the program's value (cost, or samples held).

    `status` infeasible: there is provably no solution.
    """

    status: ProgramStatus
    bound: float
    classes: NDArray[np.bool_] | None = None


@dataclass
class SampleProgram:
    """The program of some levels. `refused`: minima, requests/s by model, that need not be looked at again.

    `relative_gap`: of value and bound, at which its solution is good enough; None: the solver's own.
    """

    levels: SampleLevels
    rows: Sequence[PriceRow]
    refused: Sequence[Rates] = ()
    relative_gap: float | None = None
    program: RowProgram = field(default_factory=RowProgram)

    def least_cost(self, seconds: float, below: float, unit: float) -> SamplePoint:
        """The cheapest levels that hold the required samples, at a cost up to `below`; bounds are `unit`/100 loose."""
        cost = self.program.add_columns([1.0], [below])
        self.program.continuous.add(cost)
        slight = SLIGHT * (unit if math.isfinite(unit) else 1.0)
        solution, _, first = self._solve(seconds, cost, 0.0, slight)
        return self._point(solution, solution.bound - slight, first)

    def most_samples(self, seconds: float, fleet_part: float = 1.0) -> SamplePoint:
        """The levels that hold most samples on this part of the fleet's worth; bounds are of samples."""
        # A program without a column could not say that its rows cannot be met.
        self.program.add_columns([0.0], [0.0])
        solution, constant, first = self._solve(seconds, None, fleet_part, SLIGHT)
        return self._point(solution, constant - solution.bound + 2 * SLIGHT, first)

    def most_in_parts(self, seconds: float) -> SamplePoint:
        """A bound of the samples held, by the linear relaxation: no point, and in a fraction of the time."""
        self.program.add_columns([0.0], [0.0])
        solution, constant, _ = self._solve(seconds, None, 1.0, SLIGHT, whole=False)
        known = solution.status in ("optimal", "infeasible")
        return SamplePoint(solution.status, constant - solution.bound + 2 * SLIGHT if known else math.inf)

    def _solve(
        self, seconds: float, cost: int | None, fleet_part: float, slight: float, *, whole: bool = True
    ) -> tuple[RowSolution, int, list[int]]:
        """The solution, the samples that every point holds, and the first column of each model."""
        program, levels = self.program, self.levels
        if any(self._reachable(model) == 0 for model in range(len(levels.levels))):
            return RowSolution("infeasible", np.zeros(0), INF), 0, []
        count = sum(len(steps) - 1 for steps in levels.levels)
        # Levels that cost nothing more are not taken for nothing: they would ask the planner for more than is held.
        first = [self._add_chain(model, slight / max(count, 1)) for model in range(len(levels.levels))]
        constant, classes, weights = self._add_classes(first, gain=cost is None)
        missing = levels.required - constant
        if missing > 0:
            program.add_row(missing - SHARE_ROUNDING, INF, classes, weights)
        for row in self.rows:
            self._add_prices(row, first, cost, fleet_part)
        if not all(self._refuse(point, first) for point in self.refused):
            return RowSolution("infeasible", np.zeros(0), INF), constant, first
        if not whole:
            return program.solve(seconds, integer=False), constant, first
        solution = program.solve((1 - RELAXED_SHARE) * seconds, relative_gap=self.relative_gap)
        if solution.status == "unknown":
            # Its relaxation bounds it too, and takes a fraction of the time.
            relaxed = program.solve(RELAXED_SHARE * seconds, integer=False)
            if relaxed.status == "optimal":
                solution = replace(solution, bound=relaxed.bound)
        return solution, constant, first

    def _point(self, solution: RowSolution, bound: float, first: Sequence[int]) -> SamplePoint:
        if not len(solution.values):
            return SamplePoint(solution.status, bound)
        reached = np.array(
            [
                round(float(solution.values[column : column + len(steps) - 1].sum()))
                for column, steps in zip(first, self.levels.levels, strict=True)
            ]
        )
        return SamplePoint(solution.status, bound, np.all(self.levels.index <= reached, axis=1))

    def _add_chain(self, model: int, slight: float) -> int:
        """The columns of a model's levels above its base, each at a slight cost."""
        count = len(self.levels.levels[model]) - 1
        highest = self._reachable(model) - 1
        first = self.program.add_columns(
            [slight] * count, [1.0 if level < highest else 0.0 for level in range(count)]
        )
        for level in range(first + 1, first + count):
            self.program.add_row(-INF, 0.0, [level, level - 1], [1.0, -1.0])
        return first

    def _reachable(self, model: int) -> int:
        """How many of the model's levels the fleet can give at all."""
        steps = self.levels.levels[model]
        return self.rows[-1].reachable(model, steps) if self.rows else len(steps)

    def _add_classes(self, first: Sequence[int], *, gain: bool) -> tuple[int, list[int], list[float]]:
        """The samples that every point holds, and the columns of the other classes with their weights."""
        program, levels = self.program, self.levels
        constant, columns, weights = 0, [], []
        for needed, weight in zip(levels.index, levels.weights.tolist(), strict=True):
            above = np.flatnonzero(needed).tolist()
            if not above:
                constant += weight
                continue
            column = program.add_columns([-float(weight) if gain else 0.0], [1.0])
            # It is whole by itself wherever the levels are.
            program.continuous.add(column)
            for model in above:
                program.add_row(-INF, 0.0, [column, first[model] + int(needed[model]) - 1], [1.0, -1.0])
            columns.append(column)
            weights.append(float(weight))
        return constant, columns, weights

    def _add_prices(self, row: PriceRow, first: Sequence[int], cost: int | None, fleet_part: float) -> None:
        if row.by_cost != (cost is not None):
            return
        columns: list[int] = []
        values: list[float] = []
        base = 0.0
        for model, steps in enumerate(self.levels.levels):
            prices = row.prices_of(model, steps)
            steps_up = np.diff(prices[np.isfinite(prices)])
            base += float(prices[0])
            columns += range(first[model], first[model] + len(steps_up))
            values += steps_up.tolist()
        if cost is None:
            scale = max(row.worth, 1e-12)
            self.program.add_row(
                -INF, fleet_part - base / scale, columns, [value / scale for value in values]
            )
        else:
            self.program.add_row(base - row.worth, INF, [*columns, cost], [*(-v for v in values), 1.0])

    def _refuse(self, point: Rates, first: Sequence[int]) -> bool:
        """Leave out all levels that are nowhere below the point; False if that leaves none."""
        columns = []
        for model, steps in enumerate(self.levels.levels):
            level = int(np.searchsorted(steps, float(point[model])))
            if level >= len(steps):
                # No level of this program reaches the point.
                return True
            if level:
                columns.append(first[model] + level - 1)
        if columns:
            self.program.add_row(-INF, len(columns) - 1.0, columns, [1.0] * len(columns))
        return bool(columns)
