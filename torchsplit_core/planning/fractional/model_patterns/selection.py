"""Plans of one pattern for each model: an integer program over the patterns that prices of some levels bring forth.

| row | formula |
|---|---|
| fleet[g] | Σ_{c∈g} y[c] ≤ GPUs[g] |
| resource[p,r] | Σ_mj takes[m,j,p,r]·z[m,j] ≤ Σ_c slices[p,c]·y[c] |
| pattern[m] | Σ_j z[m,j] = 1 |

z[m,j] model m has pattern j, fitted to a level between plan and bound; the highest one that has a solution is sought by
halves. Which tenants stand together is left out, so a solution says which layouts and which tenants to search, and the
level found there is the plan's. With its layouts held, the linear program brings forth patterns that suit them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from torchsplit_core.planning.fractional.model_patterns.level_bounds import positive_rates
from torchsplit_core.planning.fractional.model_patterns.level_program import LevelProgram, ModelPatterns
from torchsplit_core.planning.fractional.model_patterns.patterns import RESOURCES, Box, Pattern, refit
from torchsplit_core.planning.fractional.tenancy_counts import TenancyCounts
from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.row_program import RowProgram

FIRST_LEVELS = (0.25, 0.6)
"""Levels between plan and bound whose linear programs bring forth the first patterns."""

RAISED = (1.005, 1.02)
"""The same with layouts held, as multiples of the level that they reach."""

STEP_S = 1.0
"""Most seconds for an integer program."""

REOPENED = 0.1
"""Part of what was between bound and plan by which the highest level sought rises where there are new patterns."""

LEAST_GAIN = 2e-3
"""Relative distance of the levels between which none is sought."""

MAX_FAILURES = 1
"""Further patterns in a row without a better plan after which the search ends."""


@dataclass
class PatternSelection:
    """A search between the level that a plan has reached, which its caller raises, and a bound."""

    patterns: ModelPatterns
    reached: float
    bound: float
    seen: set[tuple[tuple[tuple[int, int], int], ...]] = field(default_factory=set)
    """Layouts whose patterns were brought forth."""
    tried: list[dict[int, int]] = field(default_factory=list)
    """The options of the selections so far, which are not selected again together."""

    def run(self, deadline: float) -> Iterator[TenancyCounts]:
        """Selections until `deadline` (time.perf_counter).

        `reached` is to be the level of the best plan once the layouts and tenants of one were searched.
        """
        between, low, high = self.bound - self.reached, self.reached, self.bound
        for part in FIRST_LEVELS:
            self._generate(self.reached + part * between, self.patterns.whole_box, deadline)
        draw, failures = random.Random(0), 0
        while time.perf_counter() < deadline and low < self.bound * (1 - LEAST_GAIN):
            if high - low <= LEAST_GAIN * high:
                failures += 1
                if failures > MAX_FAILURES:
                    return
                self._generate(draw.uniform(low, self.bound), self._part_box(draw), deadline)
                high = min(self.bound, low + REOPENED * between)
            level = (low + high) / 2
            selected = self._select(level, deadline)
            if selected is not None:
                yield selected
            # A selection that no plan keeps to says nothing of the next lower level.
            if self.reached > low:
                low, failures = self.reached, 0
            else:
                high = level
            if selected is not None and self._suit_layouts(level, selected.layouts, deadline):
                high = min(self.bound, high + REOPENED * between)

    def _part_box(self, draw: random.Random) -> dict[int, tuple[int, int]]:
        """A part of the options of every second model, the others whole."""
        box = self.patterns.whole_box
        for model, (first, end) in box.items():
            if draw.random() < 0.5 and end - first > 1:
                middle = draw.randrange(first + 1, end)
                box[model] = draw.choice(((first, middle), (middle, end)))
        return box

    def _generate(
        self,
        level: float,
        box: Box,
        deadline: float,
        layouts: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        program = LevelProgram(self.patterns, positive_rates(self.patterns.problem, level))
        if layouts is not None:
            program.fix_layouts(layouts)
        self.patterns.generate(program, box, self.patterns.first_prices(), deadline)

    def _suit_layouts(self, level: float, layouts: Mapping[tuple[int, int], int], deadline: float) -> bool:
        """Whether these layouts, held for the first time, brought forth new patterns."""
        key, before = tuple(sorted(layouts.items())), len(self.patterns.known)
        if key in self.seen:
            return False
        self.seen.add(key)
        for factor in RAISED:
            self._generate(level * factor, self.patterns.whole_box, deadline, layouts)
        return len(self.patterns.known) > before

    def _select(self, level: float, deadline: float) -> TenancyCounts | None:
        """Layouts and tenants of a pattern for each model that reach this level; None if none were found."""
        program, capacity = RowProgram(), self.patterns.capacity
        layout_at = program.add_columns(
            [0.0] * len(capacity.columns), [float(capacity.gpus[group]) for group in capacity.group_of]
        )
        for group, gpus in enumerate(capacity.gpus.tolist()):
            columns = layout_at + np.flatnonzero(capacity.group_of == group)
            program.add_row(-INF, float(gpus), columns, np.ones(len(columns)))
        for taken, most in zip(capacity.taken, capacity.at_most.tolist(), strict=True):
            columns = np.flatnonzero(taken)
            program.add_row(-INF, float(most), layout_at + columns, taken[columns].astype(np.float64))
        rates = positive_rates(self.patterns.problem, level)
        chosen: dict[int, tuple[int, Pattern]] = {}
        takes = []
        for model, known in self.patterns.known:
            pattern = refit(self.patterns.options[model], known, rates[model]) if model in rates else None
            if pattern is not None:
                chosen[program.add_columns([0.0], [1.0])] = model, pattern
                takes.append(self.patterns.takes(model, pattern).ravel())
        of_model = np.array([model for model, _ in chosen.values()])
        columns = np.array([*chosen], dtype=np.int64)
        for model in rates:
            columns_of_model = columns[of_model == model]
            if not len(columns_of_model):
                return None
            program.add_row(1.0, 1.0, columns_of_model, np.ones(len(columns_of_model)))
        of_option = np.array([pattern.option for _, pattern in chosen.values()])
        for options in self.tried:
            wanted = np.array([options.get(model, -1) for model in of_model.tolist()])
            same = columns[of_option == wanted]
            program.add_row(-INF, len(options) - 1.0, same, np.ones(len(same)))
        for row, taken in enumerate(np.array(takes).T):
            users, slices = np.flatnonzero(taken), capacity.slices[row // RESOURCES]
            offering = np.flatnonzero(slices)
            if len(users):
                program.add_row(
                    -INF,
                    0.0,
                    np.concatenate([columns[users], layout_at + offering]),
                    np.concatenate([taken[users], -slices[offering].astype(np.float64)]),
                )
        try:
            solution = program.solve(min(STEP_S, deadline - time.perf_counter()), first=True)
        except ProgramRejected:
            return None
        if not len(solution.values):
            return None
        layouts = {
            key: count
            for key, value in zip(capacity.columns, solution.values[layout_at:].tolist(), strict=False)
            if (count := round(value))
        }
        tenants: set[int] = set()
        selected: dict[int, int] = {}
        for column, (model, pattern) in chosen.items():
            if solution.values[column] > 0.5:
                stages = self.patterns.options[model][pattern.option].stages
                tenants |= {int(stages[stage].choices[use]) for stage, use, _ in pattern.tenancies}
                selected[model] = pattern.option
        self.tried.append(selected)
        return TenancyCounts("feasible", layouts, frozenset(tenants), level, self.bound)
