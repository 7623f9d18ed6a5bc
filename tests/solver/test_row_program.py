"""Programs built row by row: solved by hand, in whole numbers and in part of them, and their prices."""

import numpy as np
import pytest

from torchsplit_core.solver.highs import INF, ProgramRejected
from torchsplit_core.solver.row_program import RowProgram


def mixed() -> RowProgram:
    """2 x + y at least 3.5 for the least 3 x + 2 y, x and y at most 2."""
    program = RowProgram()
    assert (program.add_columns([3.0], [2.0]), program.add_columns([2.0], [2.0])) == (0, 1)
    assert program.add_row(3.5, INF, [0, 1], [2.0, 1.0]) == 0
    return program


def test_in_whole_numbers_and_without():
    whole = mixed().solve(10.0)
    assert (whole.status, whole.bound) == ("optimal", pytest.approx(6.0)) and whole.values.tolist() == [
        2.0,
        0.0,
    ]
    real = mixed().solve(10.0, integer=False)
    assert (real.status, real.bound) == ("optimal", pytest.approx(5.25))
    assert real.values.tolist() == pytest.approx([1.75, 0.0])


def test_columns_that_need_not_be_whole():
    program = mixed()
    program.upper[0] = 1.0
    program.continuous.add(1)
    answer = program.solve(10.0)
    assert answer.values.tolist() == pytest.approx([1.0, 1.5]) and answer.bound == pytest.approx(6.0)
    program.continuous.clear()
    assert program.solve(10.0).values.tolist() == [1.0, 2.0]


def test_a_column_named_twice_counts_twice_and_rows_are_counted():
    program = mixed()
    assert program.add_row(-INF, 2.0, [0, 0], [1.0, 1.0]) == 1
    answer = program.solve(10.0)
    assert answer.status == "optimal" and answer.values.tolist() == [1.0, 2.0]


def test_without_a_solution():
    program = mixed()
    program.add_row(-INF, 1.0, [0, 1], [1.0, 1.0])
    for whole in (True, False):
        answer = program.solve(10.0, integer=whole)
        assert (answer.status, len(answer.values), answer.bound) == ("infeasible", 0, INF)
    assert program.duals(10.0) is None


def test_prices_of_rows():
    program = mixed()
    program.add_row(-INF, 100.0, [1], [1.0])
    duals = program.duals(10.0)
    assert duals is not None and np.abs(duals).tolist() == pytest.approx([1.5, 0.0])


def test_a_program_beyond_the_solver_is_refused():
    program = mixed()
    program.add_row(0.0, 1.0, [0], [1e16])
    with pytest.raises(ProgramRejected, match="integer program") as refused:
        program.solve(10.0)
    assert refused.value.largest == 1e16
