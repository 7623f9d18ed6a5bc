"""The one way of a matrix to HiGHS: programs solved by hand, and one that is refused."""

import highspy
import numpy as np
import pytest
from scipy.sparse import csc_matrix

from torchsplit_core.solver.highs import (
    INF,
    Matrix,
    ProgramRejected,
    csc_from_entries,
    load_program,
    run,
    set_integrality,
)
from torchsplit_core.values import InternalFault

INFINITE = highspy.kHighsInf
WIDE = (np.zeros(2), np.full(2, INFINITE))
"""Two columns from 0 on."""


def of_table(rows: list[list[float]]) -> Matrix:
    """All entries of a full table."""
    table = np.array(rows)
    row, column = np.indices(table.shape)
    return csc_from_entries(table.ravel(), row.ravel(), column.ravel(), table.shape)


def optimum(highs: highspy.Highs) -> tuple[float, list[float]]:
    """Value and columns of a program that HiGHS solves."""
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return highs.getInfo().objective_function_value, list(highs.getSolution().col_value)


def test_rows_columns_costs_and_offset_reach_the_solver():
    # Minimise x − 2y + 10 with 1 ≤ x ≤ 4, 0 ≤ y, y − x ≤ 0.5 and 3 ≤ x + y ≤ 6: y = x + 0.5, x + y = 6.
    matrix = of_table([[-1.0, 1.0], [1.0, 1.0]])
    highs = load_program(
        "test", matrix, np.array([1.0, -2.0]), columns=(np.array([1.0, 0.0]), np.array([4.0, INFINITE])),
        rows=(np.array([-INFINITE, 3.0]), np.array([0.5, 6.0])), offset=10.0,
    )  # fmt: skip
    value, columns = optimum(highs)
    assert columns == pytest.approx([2.75, 3.25]) and value == pytest.approx(2.75 - 6.5 + 10.0)
    assert list(highs.getSolution().row_dual) == pytest.approx([-1.5, -0.5])


@pytest.mark.parametrize(("whole", "wanted"), [
    (None, (3.5, 0.0)),
    ((False, True), (3.5, 0.0)),
    ((True, False), (3.0, 0.5)),
    ((True, True), (3.0, 0.0)),
])  # fmt: skip
def test_only_columns_that_are_said_to_be_are_whole(whole, wanted):
    # As much as fits into 3.5, of x rather than of y.
    highs = load_program(
        "test", of_table([[1.0, 1.0]]), np.array([-2.0, -1.0]), columns=WIDE,
        rows=(np.array([-INFINITE]), np.array([3.5])), integer=None if whole is None else np.array(whole),
    )  # fmt: skip
    _, columns = optimum(highs)
    assert columns == pytest.approx(wanted)


def test_gaps_are_set_where_they_are_given():
    rows = (np.array([0.0]), np.array([1.0]))
    own = highspy.Highs()
    for relative, absolute in ((None, None), (1e-7, None), (5e-7, 1e-9)):
        highs = load_program(
            "test", of_table([[1.0, 1.0]]), np.ones(2), columns=WIDE, rows=rows, relative_gap=relative,
            absolute_gap=absolute,
        )  # fmt: skip
        for option, gap in (("mip_rel_gap", relative), ("mip_abs_gap", absolute)):
            wanted = own.getOptionValue(option)[1] if gap is None else gap
            assert highs.getOptionValue(option)[1] == wanted, option
        for option, value in (("threads", 1), ("random_seed", 0), ("output_flag", False)):
            assert highs.getOptionValue(option)[1] == value


def test_a_program_that_highs_does_not_take_is_a_fault_with_its_name():
    matrix = of_table([[1e16, 1.0]])
    with pytest.raises(ProgramRejected, match="HiGHS refused the program of a test") as refused:
        load_program("program of a test", matrix, np.ones(2), columns=WIDE, rows=(np.zeros(1), np.ones(1)))
    assert isinstance(refused.value, InternalFault) and refused.value.largest == 1e16


def knapsack(*, least: float = 0.0, most: float = 3.5) -> highspy.Highs:
    """As much of x + y as fits between the two, x and y whole and 0 to 2."""
    return load_program(
        "test", of_table([[1.0, 1.0]]), -np.ones(2), columns=(np.zeros(2), np.full(2, 2.0)),
        rows=(np.array([least]), np.array([most])), integer=np.ones(2, dtype=bool),
    )  # fmt: skip


def test_how_a_run_ended():
    highs = knapsack()
    assert run(highs) == "optimal" and highs.getInfo().objective_function_value == -3.0
    assert run(knapsack(least=3.2, most=3.8)) == "infeasible"
    assert run(knapsack(least=5.0, most=INF)) == "infeasible"
    rows = (np.array([0.0]), np.array([INF]))
    endless = load_program("test", of_table([[1.0, 1.0]]), -np.ones(2), columns=WIDE, rows=rows)
    assert run(endless) == "unbounded"


def hard(seed: int = 0) -> highspy.Highs:
    """Equal sums of two halves of many large numbers: no proof in any short time."""
    numbers = np.random.default_rng(seed).integers(10**6, 10**7, (8, 60)).astype(float)
    half = np.floor(numbers.sum(axis=1) / 2)
    cost = np.random.default_rng(seed + 1).integers(1, 100, 60).astype(float)
    columns = (np.zeros(60), np.ones(60))
    return load_program(
        "test", csc_matrix(numbers), -cost, columns=columns, rows=(-half, half),
        integer=np.ones(60, dtype=bool),
    )  # fmt: skip


def test_a_run_ends_with_its_time_or_with_the_first_solution():
    assert run(hard(), 0.0) in ("unknown", "feasible")
    highs = hard()
    assert run(highs, 60.0, first=True) == "feasible"
    assert highs.getInfo().mip_dual_bound < highs.getInfo().objective_function_value


def test_columns_are_made_whole_and_real_again():
    highs = load_program(
        "test", of_table([[1.0, 1.0]]), np.array([-2.0, -1.0]), columns=WIDE,
        rows=(np.array([-INF]), np.array([3.5])),
    )  # fmt: skip
    first = np.array([0], dtype=np.int32)
    for whole, wanted in ((True, (3.0, 0.5)), (False, (3.5, 0.0))):
        set_integrality(highs, first, whole)
        assert run(highs) == "optimal"
        assert list(highs.getSolution().col_value) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("rows", "columns", "count"), [(5, 4, 0), (5, 4, 9), (1, 6, 6), (7, 1, 40), (30, 50, 600)]
)
def test_entries_come_column_by_column_as_scipy_has_them(rows, columns, count):
    draw = np.random.default_rng(count)
    row, column = draw.integers(rows, size=count), draw.integers(columns, size=count)
    value = draw.integers(-4, 5, size=count) / 4.0
    wanted = csc_matrix((value, (row, column)), shape=(rows, columns))
    found = csc_from_entries(value, row, column, (rows, columns))
    assert found.shape == wanted.shape
    for ours, theirs in (
        (found.indptr, wanted.indptr), (found.indices, wanted.indices), (found.data, wanted.data),
    ):  # fmt: skip
        assert ours.tolist() == theirs.tolist()
    assert found.indptr.dtype == found.indices.dtype == np.int32 and found.data.dtype == np.float64
