"""Programs as matrices, handed to HiGHS: one thread, a fixed seed, no output.

Feasibility tolerances stay at HiGHS's defaults: tightened to 1e-9 it has returned false optima. Every answer is
rechecked later.
"""

from __future__ import annotations

from typing import Any, Literal

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix

from torchsplit_core.values import InternalFault

INF = float(highspy.kHighsInf)
"""A limit that is none."""

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Lower and upper limits of all rows or all columns; INF where there is none."""

Ending = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]
"""How HiGHS ended. optimal: proven within the gaps. feasible: a solution without a proof. unknown: neither.

infeasible: proven, or left open by HiGHS between that and unbounded: the programs here have a bound.
"""


class Refused(InternalFault):
    """HiGHS does not take the program: a coefficient is not finite, or beyond its limits."""

    def __init__(self, name: str, largest: float) -> None:
        super().__init__(f"HiGHS refused the {name}.")
        self.largest = largest
        """The largest coefficient, without its sign."""


def solver_name() -> str:
    """Name and version for the statistics of an outcome."""
    return f"highs {highspy.Highs().version()}"


def load(
    name: str,
    matrix: csc_matrix,
    cost: NDArray[np.float64],
    *,
    columns: Bounds,
    rows: Bounds,
    whole: NDArray[np.bool_] | None = None,
    offset: float = 0.0,
    relative_gap: float | None = None,
    absolute_gap: float | None = None,
) -> Any:
    """HiGHS with the program that minimises cost · x + offset within the bounds of x and of matrix · x.

    `matrix` is (rows, columns); `whole` says which columns are whole numbers (None: a linear
    program); a gap is HiGHS's own where none is given. What is to be maximised comes with its
    costs negated. Raises Refused, with `name` for the program.
    """
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_, lp.offset_ = cost, offset
    lp.col_lower_, lp.col_upper_ = columns
    lp.row_lower_, lp.row_upper_ = rows
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = matrix.data.astype(np.float64)
    if whole is not None:
        lp.integrality_ = [_kind(item) for item in whole.tolist()]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    for option, gap in (("mip_rel_gap", relative_gap), ("mip_abs_gap", absolute_gap)):
        if gap is not None:
            highs.setOptionValue(option, gap)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise Refused(name, float(np.abs(matrix.data).max(initial=0.0)))
    return highs


def run(highs: Any, seconds: float | None = None, *, first: bool = False) -> Ending:
    """Solve what is loaded within `seconds` (None: without a limit); `first`: any solution will do."""
    if seconds is not None:
        highs.setOptionValue("time_limit", seconds)
    if first:
        highs.setOptionValue("mip_max_improving_sols", 1)
    highs.run()
    status, kinds = highs.getModelStatus(), highspy.HighsModelStatus
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        return "infeasible"
    if status == kinds.kUnbounded:
        return "unbounded"
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return "unknown"
    return "optimal" if status == kinds.kOptimal else "feasible"


def set_whole(highs: Any, columns: NDArray[np.int32], whole: bool) -> None:
    """Make these columns whole numbers, or real ones."""
    highs.changeColsIntegrality(len(columns), columns, np.full(len(columns), _kind(whole)))


def _kind(whole: bool) -> highspy.HighsVarType:
    return highspy.HighsVarType.kInteger if whole else highspy.HighsVarType.kContinuous
