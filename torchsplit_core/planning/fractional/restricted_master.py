"""The restricted master of diving: how many slices have which pattern, and the prices.

| row | formula |
|---|---|
| pool[p] | Σ_{f∈p} n[f] − Σ_l slices[p,l]·y[l] ≤ −(slices of p that are decided) |
| fleet[g] | Σ_{l∈g} y[l] ≤ GPUs[g] |
| cost | Σ cost·y ≤ the most that may be paid |
| stage[c,s] | Σ_f gives[f,c,s]·n[f] − missing[c,s]·w[c] ≥ 0 |
| model[m] | Σ_c w[c] + short[m] ≥ 1 |
| minimise | Σ cost·y + Σ room·n + much · Σ short |

n[f] slices have pattern f (slice_patterns.py), y[l] GPUs layout l, w[c] the model runs case c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.planning.fractional.slice_patterns import PartialPlan, SliceClass, SlicePattern
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.solver.highs import INF, run
from torchsplit_core.solver.row_program import RowProgram

MISSING_COST = 1e3
"""Cost of a model that gets nothing, in units of the dearest GPU."""

SLICE_COST = 1e-3
"""Cost of a slice as large as a GPU, in the same units, so that slices are saved."""

ClassKey = tuple[int, str]
"""Group and profile of equal slices."""

Layouts = Mapping[tuple[int, int], int]
"""GPUs by group and number of the layout."""


@dataclass(frozen=True, slots=True)
class PlacedPattern:
    """A slice pattern on the slices of a pool."""

    slice_class: ClassKey
    pattern: SlicePattern


@dataclass(frozen=True, slots=True)
class MasterSolution:
    """Slices by pattern, missing parts of all models, and the value of a slice and of a whole stage."""

    counts: dict[PlacedPattern, float]
    missing: float
    slice_prices: dict[ClassKey, float]
    stage_prices: NDArray[np.float64]


def add_layout_columns(
    program: RowProgram, problem: Problem, max_cost: float, unit: float, *, minimised: bool
) -> dict[tuple[int, int], int]:
    """Columns y by group and number of the layout, with the rows fleet and cost; costs are in `unit`."""
    columns: dict[tuple[int, int], int] = {}
    costs = []
    for g, group in enumerate(problem.groups):
        cost, most = group.cost / unit, float(len(group.gpu_ids))
        group_columns = [program.add_columns([cost * minimised], [most]) for _ in group.layouts]
        columns.update({(g, number): column for number, column in enumerate(group_columns)})
        costs += [cost] * len(group_columns)
        if group_columns:
            program.add_row(-INF, most, group_columns, [1.0] * len(group_columns))
    program.add_row(-INF, max_cost / unit, list(columns.values()), costs)
    return columns


def slices_per_column(
    problem: Problem, key: ClassKey, layouts: Mapping[tuple[int, int], int]
) -> dict[int, float]:
    """By column of a layout its number of slices of a pool."""
    group_layouts = problem.groups[key[0]].layouts
    return {
        layouts[key[0], number]: float(layout.usable_counts.get(key[1], 0))
        for number, layout in enumerate(group_layouts)
    }


class RestrictedMaster:
    """The program for some patterns and a partial plan, with `fixed_layouts` if given."""

    def __init__(
        self,
        problem: Problem,
        partial_plan: PartialPlan,
        slice_classes: Mapping[ClassKey, SliceClass],
        patterns: Sequence[PlacedPattern],
        decided: Mapping[ClassKey, int],
        max_cost: float,
        fixed_layouts: Layouts | None,
    ) -> None:
        self.problem, self.partial_plan, self.program = problem, partial_plan, RowProgram()
        self.patterns = [placed for placed in patterns if partial_plan.admits(placed.pattern)]
        unit = max([1e-9, *(group.cost for group in problem.groups)])
        self.layouts = add_layout_columns(self.program, problem, max_cost, unit, minimised=True)
        if fixed_layouts is not None:
            for key, column in self.layouts.items():
                count = float(fixed_layouts.get(key, 0))
                self.program.add_row(count, count, [column], [1.0])
        self._add_class_rows(slice_classes, decided)
        self._add_model_rows()

    def solve(self) -> MasterSolution | None:
        """The optimum; None if there is none."""
        highs = self.program.load(whole=False)
        if run(highs) != "optimal":
            return None
        values = np.array(highs.getSolution().col_value)
        duals = np.array(highs.getSolution().row_dual)
        counts = {placed: float(values[self.pattern_at + i]) for i, placed in enumerate(self.patterns)}
        return MasterSolution(
            counts,
            float(values[self.missing_at : self.missing_at + len(self.partial_plan.targets)].sum()),
            {key: max(0.0, -float(duals[row])) for key, row in self.pool_rows.items()},
            np.maximum(0.0, duals[self.stage_at : self.stage_at + len(self.partial_plan.stages)]),
        )

    def whole_layouts(self, seconds: float) -> dict[tuple[int, int], int] | None:
        """The best whole layouts found within `seconds`; None if there are none."""
        columns = set(range(len(self.program.cost)))
        self.program.continuous = columns - set(self.layouts.values())
        result = self.program.solve(seconds)
        if result.status not in ("optimal", "feasible"):
            return None
        return {key: round(float(result.values[column])) for key, column in self.layouts.items()}

    def _add_class_rows(
        self, slice_classes: Mapping[ClassKey, SliceClass], decided: Mapping[ClassKey, int]
    ) -> None:
        members: dict[ClassKey, list[int]] = {}
        self.pattern_at = len(self.program.cost)
        for placed in self.patterns:
            group = self.problem.groups[placed.slice_class[0]]
            most = max(layout.usable_counts.get(placed.slice_class[1], 0) for layout in group.layouts)
            column = self.program.add_columns([SLICE_COST / max(1, most)], [INF])
            members.setdefault(placed.slice_class, []).append(column)
        self.pool_rows: dict[ClassKey, int] = {}
        for key in slice_classes:
            slices, pattern_columns = slices_per_column(self.problem, key, self.layouts), members.get(key, [])
            values = [1.0] * len(pattern_columns) + [-count for count in slices.values()]
            self.pool_rows[key] = self.program.add_row(
                -INF, -float(decided.get(key, 0)), [*pattern_columns, *slices], values
            )

    def _add_model_rows(self) -> None:
        partial_plan, cases = self.partial_plan, self.problem.cases
        chosen_columns = {case: self.program.add_columns([0.0], [1.0]) for case, _ in partial_plan.stages}
        self.missing_at = len(self.program.cost)
        self.program.add_columns(
            [MISSING_COST] * len(partial_plan.targets), [1.0] * len(partial_plan.targets)
        )
        parts: dict[int, tuple[list[int], list[float]]] = {}
        for number, placed in enumerate(self.patterns):
            for row, part in partial_plan.contributions(placed.pattern).items():
                columns, values = parts.setdefault(row, ([], []))
                columns.append(self.pattern_at + number)
                values.append(part)
        rows = []
        for row, (case, _) in enumerate(partial_plan.stages):
            columns, values = parts.get(row, ([], []))
            missing = -float(partial_plan.missing[row])
            rows.append(self.program.add_row(0.0, INF, [*columns, chosen_columns[case]], [*values, missing]))
        self.stage_at = rows[0]
        for number, model in enumerate(sorted(partial_plan.targets)):
            case_columns = [column for case, column in chosen_columns.items() if cases[case].model == model]
            self.program.add_row(
                1.0, INF, [*case_columns, self.missing_at + number], [1.0] * (len(case_columns) + 1)
            )
