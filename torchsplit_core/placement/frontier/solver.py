"""Integer programs in seconds to a gap of 10^-7, solved by HiGHS: one thread, a fixed seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from torchsplit_core.placement.frontier.choices import Choice
from torchsplit_core.solver.row_program import INF, Program
from torchsplit_core.values import InternalFault

GAP = 1e-7
"""Relative, of the solver's own bound; PROVEN is ten times as much."""

NEARLY = 5e-7
"""What is not this much quicker than the best known, relatively, is not looked for."""

SCALE = 1000.0
"""What the best latency known is in the units of a program: HiGHS's tolerances are absolute."""


@dataclass(frozen=True)
class Reply:
    """values: the best solution in whole numbers; empty where none was found. bound: no solution costs less."""

    values: np.ndarray
    bound: float


@dataclass
class SecondsProgram(Program):
    """A program whose cost is seconds in some unit. real: the columns that need not be whole."""

    real: set[int] = field(default_factory=set)

    def closely(self, seconds: float, most: float) -> Reply:
        """Solve within `seconds`; what costs more than `most` is not looked for, and the bound no higher than that.

        Raises InternalFault where HiGHS refuses.
        """
        highs = highspy.Highs()
        options = {
            "output_flag": False,
            "threads": 1,
            "random_seed": 0,
            "time_limit": max(seconds, 0.01),
            "mip_rel_gap": GAP,
            "mip_abs_gap": 0.0,
            "objective_bound": min(most, INF),
        }
        for name, value in options.items():
            highs.setOptionValue(name, value)
        if highs.passModel(self._model(True)) == highspy.HighsStatus.kError:
            raise InternalFault("HiGHS refused a program of the curve.")
        highs.run()
        status, info, kinds = highs.getModelStatus(), highs.getInfo(), highspy.HighsModelStatus
        if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
            return Reply(np.zeros(0, dtype=np.int64), most)
        bound = min(info.mip_dual_bound * (1 - GAP), most)
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Reply(np.zeros(0, dtype=np.int64), bound)
        return Reply(np.rint(highs.getSolution().col_value).astype(np.int64), bound)

    def price(self, choice: Choice, segments: int, layers: int, unit_s: float) -> None:
        """Let the seconds of a choice count: its columns are those of how many segments, and of their layers."""
        if len(choice.lines) == 1:
            ((fixed_s, layer_s),) = choice.lines
            self.cost[segments] += fixed_s / unit_s
            self.cost[layers] += layer_s / unit_s
            return
        taken = self.columns([1.0], [INF])
        self.real.add(taken)
        for fixed_s, layer_s in choice.lines:
            self.row(0, INF, [taken, segments, layers], [1, -fixed_s / unit_s, -layer_s / unit_s])

    def _model(self, whole: bool) -> highspy.HighsLp:
        found = super()._model(whole)
        if whole:
            kinds = highspy.HighsVarType
            found.integrality_ = [
                kinds.kContinuous if column in self.real else kinds.kInteger
                for column in range(len(self.cost))
            ]
        return found
