"""Programs as matrices, handed to HiGHS: one thread, a fixed seed, no output.

Feasibility tolerances stay at HiGHS's defaults: tightened to 1e-9 it has returned false optima. Every answer is
rechecked later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchsplit_core.values import InternalFault

INF = float(highspy.kHighsInf)
"""A limit that is none."""

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Lower and upper limits of all rows or all columns; INF where there is none."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix (rows, columns) column by column: SciPy's CSC arrays, without its second of imports.

    `indices` are the rows of the entries `data`; those of column c stand from `indptr[c]` to `indptr[c + 1]`.
    """

    shape: tuple[int, int]
    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    data: NDArray[np.float64]


def csc_from_entries(
    values: ArrayLike, rows: ArrayLike, columns: ArrayLike, shape: tuple[int, int]
) -> Matrix:
    """The matrix that is the sum of entries, each a value at a row and a column."""
    row, column = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
    where, place = np.unique(column * shape[0] + row, return_inverse=True)
    column, row = np.divmod(where, max(1, shape[0]))
    data = np.bincount(place, weights=np.asarray(values, dtype=np.float64), minlength=len(where)).astype(
        np.float64
    )
    indptr = np.searchsorted(column, np.arange(shape[1] + 1))
    return Matrix(shape, indptr.astype(np.int32), row.astype(np.int32), data)


HighsStatus = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]
"""How HiGHS ended. optimal: proven within the gaps. feasible: a solution without a proof. unknown: neither.

infeasible: proven, or left open by HiGHS between that and unbounded: the programs here have a bound.
"""


class ProgramRejected(InternalFault):
    """HiGHS does not take the program: a coefficient is not finite, or beyond its limits."""

    def __init__(self, name: str, largest: float) -> None:
        super().__init__(f"HiGHS refused the {name}.")
        self.largest = largest
        """The largest coefficient, without its sign."""


def solver_name() -> str:
    """Name and version for the statistics of an outcome."""
    return f"highs {highspy.Highs().version()}"


def load_program(
    name: str,
    matrix: Matrix,
    cost: NDArray[np.float64],
    *,
    columns: Bounds,
    rows: Bounds,
    integer: NDArray[np.bool_] | None = None,
    offset: float = 0.0,
    relative_gap: float | None = None,
    absolute_gap: float | None = None,
) -> Any:
    """HiGHS with the program that minimises cost · x + offset within the bounds of x and of matrix · x.

    `matrix` is (rows, columns); `integer` says which columns are whole numbers (None: a linear
    program); a gap is HiGHS's own where none is given. What is to be maximised comes with its
    costs negated. Raises ProgramRejected, with `name` for the program.
    """
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = matrix.shape
    program.col_cost_, program.offset_ = cost, offset
    program.col_lower_, program.col_upper_ = columns
    program.row_lower_, program.row_upper_ = rows
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = matrix.indptr
    program.a_matrix_.index_ = matrix.indices
    program.a_matrix_.value_ = matrix.data
    if integer is not None:
        program.integrality_ = [_variable_type(item) for item in integer.tolist()]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    for option, gap in (("mip_rel_gap", relative_gap), ("mip_abs_gap", absolute_gap)):
        if gap is not None:
            highs.setOptionValue(option, gap)
    if highs.passModel(program) == highspy.HighsStatus.kError:
        raise ProgramRejected(name, float(np.abs(matrix.data).max(initial=0.0)))
    return highs


def run(highs: Any, seconds: float | None = None, *, first: bool = False) -> HighsStatus:
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


def set_integrality(highs: Any, columns: NDArray[np.int32], integer: bool) -> None:
    """Make these columns whole numbers, or real ones."""
    highs.changeColsIntegrality(len(columns), columns, np.full(len(columns), _variable_type(integer)))


def _variable_type(integer: bool) -> highspy.HighsVarType:
    return highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous
