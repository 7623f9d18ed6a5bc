"""Programs as matrices, handed to HiGHS: one thread, a fixed seed, no output."""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_matrix

from torchsplit_core.values import InternalFault

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Lower and upper limits of all rows or all columns; kHighsInf where there is none."""


class Refused(InternalFault):
    """HiGHS does not take the program: a coefficient is not finite, or beyond its limits."""


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
        integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [integer if item else real for item in whole.tolist()]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    for option, gap in (("mip_rel_gap", relative_gap), ("mip_abs_gap", absolute_gap)):
        if gap is not None:
            highs.setOptionValue(option, gap)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise Refused(f"HiGHS refused the planner's {name}.")
    return highs
