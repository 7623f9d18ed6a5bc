"""An integer program over the known slice patterns: which pattern each slice has, and with which shares.

| row | formula |
|---|---|
| fleet[g], cost, pool[p], model[m] | as in restricted_master.py, with whole n[f] and y[l] |
| room[f] | Σ_{u∈f} x[f,u] ≤ n[f] |
| least[f,u] | x[f,u] ≥ latency(u) / limit · n[f] and x[f,u] ≥ Σ_s Λ[c,s] / limit − (1 − n[f]) |
| longest[f,u] | Λ[c,s] ≥ latency(u) · n[f] |
| limit[c] | Σ_s Λ[c,s] ≤ limit |
| chosen[f,u] | x[f,u] ≤ most · w[c], where the model has several cases |
| stage[c,s] | Σ rate(u) · x[f,u] − w[c] ≥ 0 |

n[f] slices have pattern f. One of several tenants is on one slice at most (n[f] ≤ 1), its shares x free; one of a
single tenant has all of each of its slices, and z[f] says whether there is any: n[f] ≤ most · z[f], Λ[c,s] ≥ latency ·
z[f].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from torchsplit_core.planning.fractional.restricted_master import (
    ClassKey,
    PlacedPattern,
    add_layout_columns,
    slices_per_column,
)
from torchsplit_core.planning.fractional.slice_patterns import PartialPlan, SlicePattern
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.row_program import RowProgram


class PatternSelectionProgram:
    """The program for `targets`, with patterns by their tenants; shares are found anew."""

    def __init__(
        self, problem: Problem, targets: Mapping[int, float], placed: Iterable[PlacedPattern], max_cost: float
    ) -> None:
        self.problem, self.targets, self.program = problem, targets, RowProgram()
        self.partial_plan = PartialPlan(problem, targets)
        self.tenant_sets = list(
            dict.fromkeys(
                (placed_pattern.slice_class, tuple(number for number, _ in placed_pattern.pattern))
                for placed_pattern in placed
            )
        )
        self.layouts = add_layout_columns(self.program, problem, max_cost, 1.0, minimised=False)
        self._add_cases()
        self.shares: list[dict[int, int]] = []
        self.counts: list[int] = []
        self.stage_columns: dict[tuple[int, int], tuple[list[int], list[float]]] = {}
        for pool, tenants in self.tenant_sets:
            self._add_tenant_set(pool, tenants)
        self._add_class_rows()
        self._add_model_rows()

    def solve(self, seconds: float) -> tuple[dict[tuple[int, int], int], dict[PlacedPattern, int]] | None:
        """Layouts, and the number of slices by pattern; None if none were found within `seconds`."""
        try:
            result = self.program.solve(seconds, first=True)
        except ProgramRejected:
            # A target many orders below what a slice gives is beyond the solver's scale.
            return None
        if result.status not in ("optimal", "feasible"):
            return None
        layouts = {key: round(float(result.values[column])) for key, column in self.layouts.items()}
        counts_by_pattern = {}
        for (pool, _), count, shares in zip(self.tenant_sets, self.counts, self.shares, strict=True):
            times = round(float(result.values[count]))
            if times:
                counts_by_pattern[PlacedPattern(pool, self._shares(result.values, shares, times))] = times
        return layouts, counts_by_pattern

    def _shares(self, values: np.ndarray, columns: Mapping[int, int], times: int) -> SlicePattern:
        return tuple((number, float(values[column]) / times) for number, column in columns.items())

    def _add_cases(self) -> None:
        """w[c], and Λ[c,s] in units of the remaining limit."""
        self.case_columns: dict[int, int] = {}
        self.longest: dict[tuple[int, int], int] = {}
        for case, stage in self.partial_plan.stages:
            if case not in self.case_columns:
                self.case_columns[case] = self.program.add_columns([0.0], [1.0])
            if self.problem.cases[case].budget_ms is not None:
                column = self.program.add_columns([0.0], [1.0])
                self.program.continuous.add(column)
                self.longest[case, stage] = column

    def _relative_latency(self, choice: Choice) -> float | None:
        """In units of the remaining limit; None without a limit."""
        budget = self.problem.cases[choice.case].budget_ms
        return None if budget is None else choice.point.latency_ms / budget

    def _add_tenant_set(self, pool: ClassKey, tenants: tuple[int, ...]) -> None:
        group = self.problem.groups[pool[0]]
        slices = len(group.gpu_ids) * max(layout.usable_counts.get(pool[1], 0) for layout in group.layouts)
        single = len(tenants) == 1
        count = self.program.add_columns([0.0], [float(slices) if single else 1.0])
        presence = count
        if single:
            presence = self.program.add_columns([0.0], [1.0])
            self.program.add_row(-INF, 0.0, [count, presence], [1.0, -float(slices)])
        shares = {}
        for number in tenants:
            choice = self.problem.choices[number]
            share = count
            if not single:
                share = self.program.add_columns([0.0], [1.0])
                self.program.continuous.add(share)
            shares[number] = share
            columns, values = self.stage_columns.setdefault((choice.case, choice.stage), ([], []))
            columns.append(share)
            values.append(choice.rate_rps / self.targets[choice.model])
            latency = self._relative_latency(choice)
            if latency is None:
                continue
            self.program.add_row(
                0.0, INF, [self.longest[choice.case, choice.stage], presence], [1.0, -latency]
            )
            if not single:
                self.program.add_row(0.0, INF, [share, count], [1.0, -latency])
                needed = [self.longest[key] for key in self.longest if key[0] == choice.case]
                self.program.add_row(-1.0, INF, [share, count, *needed], [1.0, -1.0, *[-1.0] * len(needed)])
        if not single:
            self.program.add_row(-INF, 0.0, [*shares.values(), count], [*[1.0] * len(shares), -1.0])
        self.counts.append(count)
        self.shares.append(shares)

    def _add_class_rows(self) -> None:
        members: dict[ClassKey, list[int]] = {}
        for (pool, _), count in zip(self.tenant_sets, self.counts, strict=True):
            members.setdefault(pool, []).append(count)
        for pool, counts in members.items():
            slices = slices_per_column(self.problem, pool, self.layouts)
            values = [1.0] * len(counts) + [-count for count in slices.values()]
            self.program.add_row(-INF, 0.0, [*counts, *slices], values)

    def _add_model_rows(self) -> None:
        for stage in self.partial_plan.stages:
            columns, values = self.stage_columns.get(stage, ([], []))
            self.program.add_row(0.0, INF, [*columns, self.case_columns[stage[0]]], [*values, -1.0])
        for model in sorted(self.targets):
            cases = [case for case in self.case_columns if self.problem.cases[case].model == model]
            self.program.add_row(1.0, 1.0, [self.case_columns[case] for case in cases], [1.0] * len(cases))
            for case in cases:
                self._add_case_rows(case, alone=len(cases) == 1)

    def _add_case_rows(self, case: int, *, alone: bool) -> None:
        """Its longest latencies together keep the limit; a case that is not chosen has no tenants."""
        longest = [column for key, column in self.longest.items() if key[0] == case]
        if longest:
            self.program.add_row(-INF, 1.0, longest, [1.0] * len(longest))
        for stage in range(0 if alone else self.problem.cases[case].stages):
            for column in self.stage_columns.get((case, stage), ([], []))[0]:
                self.program.add_row(
                    -INF, 0.0, [column, self.case_columns[case]], [1.0, -self.program.upper[column]]
                )
