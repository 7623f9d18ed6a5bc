"""Integer programs built row by row, solved by HiGHS: one thread, a fixed seed, default tolerances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchsplit_core.solver.highs import INF, csc_from_entries, load_program, run
from torchsplit_core.values.status import ProgramStatus

MIN_TIME_LIMIT_S = 0.01
"""HiGHS gets at least this long, so that a small program is solved even when time is up. Chosen, not measured."""

SUB_PROGRAMS = ("mip_heuristic_run_rens", "mip_heuristic_run_rins", "mip_heuristic_run_root_reduced_cost")
"""HiGHS's options for heuristics that solve integer programs."""


@dataclass(frozen=True)
class RowSolution:
    """How HiGHS ended: optimal (proven), feasible (time ended, or `first` was given), infeasible, unknown.

    `values`: one per column, empty without a solution. `bound`: no solution costs less.
    """

    status: ProgramStatus
    values: np.ndarray
    bound: float


@dataclass
class RowProgram:
    """A program that minimises cost · x, built row by row. `continuous`: the columns that need not be integer.

    A caller that rounds a solution's values must use integer coefficients.
    """

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    continuous: set[int] = field(default_factory=set)
    _rows: list[tuple[float, float]] = field(default_factory=list)
    _row_of: list[np.ndarray] = field(default_factory=list)
    _column_of: list[np.ndarray] = field(default_factory=list)
    _value_of: list[np.ndarray] = field(default_factory=list)
    _relaxed: tuple[Any, int, int] | None = None
    """The last relaxation in HiGHS, and how many columns and rows it has."""

    def add_columns(self, cost: Sequence[float], upper: Sequence[float]) -> int:
        """Add columns with bounds 0 and `upper`; returns the index of the first."""
        first = len(self.cost)
        self.cost += cost
        self.upper += upper
        return first

    def add_row(
        self,
        lower: float,
        upper: float,
        columns: Sequence[int] | np.ndarray,
        values: Sequence[float] | np.ndarray,
    ) -> int:
        """Add lower <= values · x[columns] <= upper, where repeated columns are summed; returns the row's index."""
        number = len(self._rows)
        self._row_of.append(np.full(len(columns), number))
        self._column_of.append(np.asarray(columns, dtype=np.int64))
        self._value_of.append(np.asarray(values, dtype=np.float64))
        self._rows.append((lower, upper))
        return number

    def solve(
        self,
        seconds: float,
        *,
        integer: bool = True,
        first: bool = False,
        start: Mapping[int, float] | None = None,
        relative_gap: float | None = None,
        sub_programs: bool = True,
        restarts: bool = True,
        whole_within: float | None = None,
    ) -> RowSolution:
        """Solve within `seconds`; `integer` False: the relaxation; `first`: any solution. Raises ProgramRejected.

        `start`: values of some columns, from which HiGHS makes a first solution if it can. `relative_gap` between value
        and bound at which it ends as optimal; None: HiGHS's default. `sub_programs`: whether it looks for solutions by
        integer programs of its own, which takes half of the time where a small program has none. `restarts`: whether it
        may begin anew with what it has fixed. `whole_within`: how far a value may be from a whole number; None: HiGHS's
        default, 10^-6.
        """
        highs = self.load(whole=integer, relative_gap=relative_gap)
        if not sub_programs:
            for option in SUB_PROGRAMS:
                highs.setOptionValue(option, False)
        if not restarts:
            highs.setOptionValue("mip_allow_restart", False)
        if whole_within is not None:
            highs.setOptionValue("mip_feasibility_tolerance", whole_within)
        if start:
            highs.setSolution(
                len(start), np.array(list(start), dtype=np.int32), np.array(list(start.values()))
            )
        ending = run(highs, max(seconds, MIN_TIME_LIMIT_S), first=first)
        if ending == "infeasible":
            return RowSolution("infeasible", np.zeros(0), INF)
        info = highs.getInfo()
        bound = info.mip_dual_bound if integer else info.objective_function_value
        if ending == "optimal":
            return RowSolution("optimal", np.array(highs.getSolution().col_value), bound)
        if integer and ending == "feasible":
            return RowSolution("feasible", np.array(highs.getSolution().col_value), bound)
        return RowSolution("unknown", np.zeros(0), -INF)

    def relax_again(self, seconds: float) -> RowSolution:
        """The linear relaxation, from the last one's basis if only rows were added since. Raises ProgramRejected."""
        width, rows = len(self.cost), len(self._rows)
        if self._relaxed is None or self._relaxed[1] != width:
            highs = self.load(whole=False)
        else:
            highs, _, known = self._relaxed
            for number in range(known, rows):
                columns, places = np.unique(self._column_of[number], return_inverse=True)
                values = np.bincount(places, weights=self._value_of[number], minlength=len(columns))
                highs.addRow(*self._rows[number], len(columns), columns.astype(np.int32), values)
        self._relaxed = (highs, width, rows)
        # HiGHS counts the time of all its runs.
        ending = run(highs, highs.getRunTime() + max(seconds, MIN_TIME_LIMIT_S))
        if ending == "infeasible":
            return RowSolution("infeasible", np.zeros(0), INF)
        if ending != "optimal":
            return RowSolution("unknown", np.zeros(0), -INF)
        bound = highs.getInfo().objective_function_value
        return RowSolution("optimal", np.array(highs.getSolution().col_value), bound)

    def duals(self, seconds: float) -> np.ndarray | None:
        """The dual of each row of the linear relaxation; None without an optimum in time. Raises ProgramRejected."""
        highs = self.load(whole=False)
        if run(highs, max(seconds, MIN_TIME_LIMIT_S)) != "optimal":
            return None
        return np.array(highs.getSolution().row_dual)

    def load(
        self, *, whole: bool, relative_gap: float | None = None, absolute_gap: float | None = None
    ) -> Any:
        """HiGHS loaded with the program; a gap of None keeps HiGHS's default. Raises ProgramRejected."""
        rows, width = len(self._rows), len(self.cost)
        matrix = csc_from_entries(
            np.concatenate(self._value_of),
            np.concatenate(self._row_of),
            np.concatenate(self._column_of),
            (rows, width),
        )
        limits = np.array(self._rows, dtype=np.float64).reshape(rows, 2)
        integrality = None
        if whole:
            integrality = np.ones(width, dtype=bool)
            integrality[list(self.continuous)] = False
        return load_program(
            "integer program" if whole else "linear program",
            matrix,
            np.array(self.cost, dtype=np.float64),
            columns=(np.zeros(width), np.array(self.upper, dtype=np.float64)),
            rows=(limits[:, 0].copy(), limits[:, 1].copy()),
            integer=integrality,
            relative_gap=relative_gap,
            absolute_gap=absolute_gap,
        )
