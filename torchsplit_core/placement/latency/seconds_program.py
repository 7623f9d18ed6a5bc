"""Integer programs in seconds to a gap of 10^-7, solved by HiGHS with one thread and a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchsplit_core.placement.latency.choices import Choice
from torchsplit_core.solver.highs import INF, run
from torchsplit_core.solver.row_program import MIN_TIME_LIMIT_S, RowProgram

GAP = 1e-7
"""Relative gap of the solver's own bound; PROVEN is ten times as much."""

NEARLY = 5e-7
"""Improvements smaller than this, relatively, are not searched."""

SCALE = 1000.0
"""The best known latency in units of a program: HiGHS's tolerances are absolute."""


@dataclass(frozen=True)
class SolveResult:
    """values: the best integer solution, or empty. bound: no solution costs less."""

    values: np.ndarray
    bound: float


class SecondsProgram(RowProgram):
    """A program whose cost is seconds in some unit."""

    def solve_to_gap(self, seconds: float, most: float) -> SolveResult:
        """Solve within `seconds` for a cost of at most `most`, which also limits the bound.

        Raises Refused.
        """
        highs = self.load(whole=True, relative_gap=GAP, absolute_gap=0.0)
        highs.setOptionValue("objective_bound", min(most, INF))
        ending = run(highs, max(seconds, MIN_TIME_LIMIT_S))
        if ending == "infeasible":
            return SolveResult(np.zeros(0, dtype=np.int64), most)
        bound = min(highs.getInfo().mip_dual_bound * (1 - GAP), most)
        if ending not in ("optimal", "feasible"):
            return SolveResult(np.zeros(0, dtype=np.int64), bound)
        return SolveResult(np.rint(highs.getSolution().col_value).astype(np.int64), bound)

    def add_cost(self, choice: Choice, segments: int, layers: int, unit_s: float) -> None:
        """Add the seconds of a choice to the cost; its columns count its segments and their layers."""
        if len(choice.lines) == 1:
            ((fixed_s, layer_s),) = choice.lines
            self.cost[segments] += fixed_s / unit_s
            self.cost[layers] += layer_s / unit_s
            return
        taken = self.add_columns([1.0], [INF])
        self.continuous.add(taken)
        for fixed_s, layer_s in choice.lines:
            self.add_row(0, INF, [taken, segments, layers], [1, -fixed_s / unit_s, -layer_s / unit_s])
