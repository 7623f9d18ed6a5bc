"""Integer programs row by row, solved by HiGHS: one thread, a fixed seed, default tolerances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
from scipy.sparse import csc_matrix

from torchsplit_core.values import InternalFault
from torchsplit_core.values.status import ProgramStatus

INF = float(highspy.kHighsInf)


@dataclass(frozen=True)
class Answer:
    """What HiGHS says: optimal (proven), feasible (time ended, or the first was enough), infeasible, unknown.

    values: one a column, empty without a solution. bound: no solution costs less.
    """

    status: ProgramStatus
    values: np.ndarray
    bound: float


@dataclass
class Program:
    """A program that minimises cost · x, built a row at a time. Coefficients are to be whole numbers."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    _rows: list[tuple[float, float]] = field(default_factory=list)
    _row_of: list[np.ndarray] = field(default_factory=list)
    _column_of: list[np.ndarray] = field(default_factory=list)
    _value_of: list[np.ndarray] = field(default_factory=list)

    def columns(self, cost: Sequence[float], upper: Sequence[float]) -> int:
        """Add columns from 0 to `upper`; the number of the first."""
        first = len(self.cost)
        self.cost += cost
        self.upper += upper
        return first

    def row(
        self,
        lower: float,
        upper: float,
        columns: Sequence[int] | np.ndarray,
        values: Sequence[float] | np.ndarray,
    ) -> None:
        """Add lower <= values · x[columns] <= upper; a column named twice counts twice."""
        self._row_of.append(np.full(len(columns), len(self._rows)))
        self._column_of.append(np.asarray(columns, dtype=np.int64))
        self._value_of.append(np.asarray(values, dtype=np.float64))
        self._rows.append((lower, upper))

    def solve(self, seconds: float, *, whole: bool = True, first: bool = False) -> Answer:
        """Solve within `seconds`; `first`: any solution will do. Raises InternalFault where HiGHS refuses."""
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("random_seed", 0)
        highs.setOptionValue("time_limit", max(seconds, 0.01))
        if first:
            highs.setOptionValue("mip_max_improving_sols", 1)
        if highs.passModel(self._model(whole)) == highspy.HighsStatus.kError:
            raise InternalFault("HiGHS refused a program of the placement search.")
        highs.run()
        status, info, kinds = highs.getModelStatus(), highs.getInfo(), highspy.HighsModelStatus
        if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
            return Answer("infeasible", np.zeros(0), INF)
        bound = info.mip_dual_bound if whole else info.objective_function_value
        if status == kinds.kOptimal:
            return Answer("optimal", np.array(highs.getSolution().col_value), bound)
        if whole and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            return Answer("feasible", np.array(highs.getSolution().col_value), bound)
        return Answer("unknown", np.zeros(0), -INF)

    def _model(self, whole: bool) -> highspy.HighsLp:
        rows, width = len(self._rows), len(self.cost)
        matrix = csc_matrix(
            (
                np.concatenate(self._value_of),
                (np.concatenate(self._row_of), np.concatenate(self._column_of)),
            ),
            shape=(rows, width),
        )
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = rows, width
        lp.col_cost_ = np.array(self.cost, dtype=np.float64)
        lp.col_lower_, lp.col_upper_ = np.zeros(width), np.array(self.upper, dtype=np.float64)
        bounds = np.array(self._rows, dtype=np.float64).reshape(rows, 2)
        lp.row_lower_, lp.row_upper_ = bounds[:, 0].copy(), bounds[:, 1].copy()
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
        lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
        lp.a_matrix_.value_ = matrix.data
        if whole:
            lp.integrality_ = [highspy.HighsVarType.kInteger] * width
        return lp
