"""Passes programs to HiGHS as matrices: one thread, a fixed seed, no output.

Feasibility tolerances stay at HiGHS's defaults: tightened to 1e-9 it has returned wrong optima. Every solution is
verified later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import highspy
import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchsplit_core.values import InternalFault

INF = float(highspy.kHighsInf)
"""An infinite bound: no limit."""

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Lower and upper bounds of all rows or all columns; -INF and INF for none."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A sparse matrix of `shape` (rows, columns) as CSC arrays, without importing SciPy, which takes a second.

    `indices` are the rows of the entries `data`; those of column c are from `indptr[c]` to `indptr[c + 1]`.
    """

    shape: tuple[int, int]
    indptr: NDArray[np.int32]
    indices: NDArray[np.int32]
    data: NDArray[np.float64]


def csc_from_entries(
    values: ArrayLike, rows: ArrayLike, columns: ArrayLike, shape: tuple[int, int]
) -> Matrix:
    """The matrix with `values` at (`rows`, `columns`); duplicates are summed."""
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

infeasible: proven, or HiGHS's "unbounded or infeasible", since every program here is bounded.
"""


class ProgramRejected(InternalFault):
    """HiGHS rejected the program: a coefficient is not finite, or beyond its limits."""

    def __init__(self, name: str, largest: float) -> None:
        super().__init__(f"HiGHS refused the {name}.")
        self.largest = largest
        """The largest absolute coefficient."""


def solver_name() -> str:
    """HiGHS's name and version, for the statistics of an outcome."""
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
    """HiGHS loaded with the program: minimise cost · x + offset within the bounds of x and of matrix · x.

    `matrix` is (rows, columns); `integer` says which columns are integer (None: a linear program); a gap of
    None keeps HiGHS's default. To maximise, negate the costs. Raises ProgramRejected, which names the
    program `name`.
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
    """Solve the loaded program within `seconds` (None: no limit); `first`: stop at the first solution."""
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
    """Make these columns integer or continuous."""
    highs.changeColsIntegrality(len(columns), columns, np.full(len(columns), _variable_type(integer)))


def _variable_type(integer: bool) -> highspy.HighsVarType:
    return highspy.HighsVarType.kInteger if integer else highspy.HighsVarType.kContinuous
