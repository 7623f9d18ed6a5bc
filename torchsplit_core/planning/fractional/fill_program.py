"""How many slices have which fill: the linear program behind `dive`, its answer and its prices.

| row | formula |
|---|---|
| pool[p] | Σ_{f∈p} n[f] − Σ_l slices[p,l]·y[l] ≤ −(slices of p that are decided) |
| fleet[g] | Σ_{l∈g} y[l] ≤ GPUs[g] |
| cost | Σ cost·y ≤ the most that may be paid |
| stage[c,s] | Σ_f gives[f,c,s]·n[f] − missing[c,s]·w[c] ≥ 0 |
| model[m] | Σ_c w[c] + short[m] ≥ 1 |
| minimise | Σ cost·y + Σ room·n + much · Σ short |

n[f] slices have fill f (fills.py), y[l] GPUs layout l, w[c] the model runs case c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.fractional.fills import Fill, Pool, Standing
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.solver.highs import INF, run
from torchsplit_core.solver.row_program import RowProgram

MUCH = 1e3
"""What a model that has nothing costs, in units of the dearest GPU."""

A_SLICE = 1e-3
"""What a slice of the size of a GPU costs beside it, in the same units, so that slices which may be spared are."""

Key = tuple[int, str]
"""Group and profile of equal slices."""

Layouts = Mapping[tuple[int, int], int]
"""GPUs by group and number of the layout."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A fill on the slices of a pool."""

    pool: Key
    fill: Fill


@dataclass(frozen=True, slots=True)
class Solved:
    """Slices by fill, parts of models that are missing in all, and what a slice and a whole stage are worth."""

    counts: dict[Placed, float]
    short: float
    slice_prices: dict[Key, float]
    stage_prices: NDArray[np.float64]


def add_layouts(
    program: RowProgram, problem: Problem, most_cost: float, unit: float, *, minimised: bool
) -> dict[tuple[int, int], int]:
    """Columns y by group and number of the layout, with the rows fleet and cost; costs are in `unit`."""
    found: dict[tuple[int, int], int] = {}
    costs = []
    for g, group in enumerate(problem.groups):
        cost, most = group.cost / unit, float(len(group.gpu_ids))
        here = [program.add_columns([cost * minimised], [most]) for _ in group.layouts]
        found.update({(g, number): column for number, column in enumerate(here)})
        costs += [cost] * len(here)
        if here:
            program.add_row(-INF, most, here, [1.0] * len(here))
    program.add_row(-INF, most_cost / unit, list(found.values()), costs)
    return found


def slices_of(problem: Problem, key: Key, layouts: Mapping[tuple[int, int], int]) -> dict[int, float]:
    """By column of a layout how many slices of a pool it has."""
    here = problem.groups[key[0]].layouts
    return {layouts[key[0], number]: float(one.useful.get(key[1], 0)) for number, one in enumerate(here)}


class FillProgram:
    """The program for some fills and what stands already; with `held` the layouts are these."""

    def __init__(
        self,
        problem: Problem,
        standing: Standing,
        pools: Mapping[Key, Pool],
        fills: Sequence[Placed],
        decided: Mapping[Key, int],
        most_cost: float,
        held: Layouts | None,
    ) -> None:
        self.problem, self.standing, self.program = problem, standing, RowProgram()
        self.fills = [placed for placed in fills if standing.takes(placed.fill)]
        unit = max([1e-9, *(group.cost for group in problem.groups)])
        self.layouts = add_layouts(self.program, problem, most_cost, unit, minimised=True)
        if held is not None:
            for key, column in self.layouts.items():
                count = float(held.get(key, 0))
                self.program.add_row(count, count, [column], [1.0])
        self._pools(pools, decided)
        self._models()

    def solve(self) -> Solved | None:
        """Its optimum; None where there is none."""
        highs = self.program.load(whole=False)
        if run(highs) != "optimal":
            return None
        values = np.array(highs.getSolution().col_value)
        duals = np.array(highs.getSolution().row_dual)
        counts = {placed: float(values[self.fill_at + i]) for i, placed in enumerate(self.fills)}
        return Solved(
            counts,
            float(values[self.short_at : self.short_at + len(self.standing.wanted)].sum()),
            {key: max(0.0, -float(duals[row])) for key, row in self.pool_rows.items()},
            np.maximum(0.0, duals[self.stage_at : self.stage_at + len(self.standing.stages)]),
        )

    def whole_layouts(self, seconds: float) -> dict[tuple[int, int], int] | None:
        """The layouts of its best answer with whole layouts found in so many seconds; None where there is none."""
        columns = set(range(len(self.program.cost)))
        self.program.continuous = columns - set(self.layouts.values())
        answer = self.program.solve(seconds)
        if answer.status not in ("optimal", "feasible"):
            return None
        return {key: round(float(answer.values[column])) for key, column in self.layouts.items()}

    def _pools(self, pools: Mapping[Key, Pool], decided: Mapping[Key, int]) -> None:
        members: dict[Key, list[int]] = {}
        self.fill_at = len(self.program.cost)
        for placed in self.fills:
            group = self.problem.groups[placed.pool[0]]
            most = max(layout.useful.get(placed.pool[1], 0) for layout in group.layouts)
            column = self.program.add_columns([A_SLICE / max(1, most)], [INF])
            members.setdefault(placed.pool, []).append(column)
        self.pool_rows: dict[Key, int] = {}
        for key in pools:
            there, here = slices_of(self.problem, key, self.layouts), members.get(key, [])
            values = [1.0] * len(here) + [-count for count in there.values()]
            self.pool_rows[key] = self.program.add_row(-INF, -float(decided.get(key, 0)), [*here, *there], values)

    def _models(self) -> None:
        standing, cases = self.standing, self.problem.cases
        runs = {case: self.program.add_columns([0.0], [1.0]) for case, _ in standing.stages}
        self.short_at = len(self.program.cost)
        self.program.add_columns([MUCH] * len(standing.wanted), [1.0] * len(standing.wanted))
        parts: dict[int, tuple[list[int], list[float]]] = {}
        for place, placed in enumerate(self.fills):
            for row, part in standing.gives(placed.fill).items():
                columns, values = parts.setdefault(row, ([], []))
                columns.append(self.fill_at + place)
                values.append(part)
        rows = []
        for row, (case, _) in enumerate(standing.stages):
            columns, values = parts.get(row, ([], []))
            missing = -float(standing.missing[row])
            rows.append(self.program.add_row(0.0, INF, [*columns, runs[case]], [*values, missing]))
        self.stage_at = rows[0]
        for place, model in enumerate(sorted(standing.wanted)):
            mine = [column for case, column in runs.items() if cases[case].model == model]
            self.program.add_row(1.0, INF, [*mine, self.short_at + place], [1.0] * (len(mine) + 1))
