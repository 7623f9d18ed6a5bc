"""HiGHS on a Pyomo model: its incumbent, its bound, and how it ended, told apart.

The model goes over as a standard form, and an incumbent and its bound come back after a
time limit too. Feasibility tolerances stay at HiGHS's
defaults: tightened to 1e-9 it has returned false optima. Every answer is rechecked later.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from torchsplit_core.planning.highs import load
from torchsplit_core.values.status import ProgramStatus

GAP = 5e-7
"""Relative gap at which a stage counts as proven: values closer than 1e-6 are equal."""

ABSOLUTE_GAP = 1e-9
"""And the absolute one: that of HiGHS, 1e-6, would end a stage of small values first."""

SHORTEST_S = 0.02
"""HiGHS gets at least this long: a small model is solved even when time is up."""


@dataclass(frozen=True)
class Answer:
    """How a solve ended. `value` and `bound` are in the sense of the model's own objective.

    optimal: proven within GAP. feasible: an incumbent without proof. infeasible: proven so.
    unknown: time ran out with nothing. `values` maps the id of a Pyomo variable to its value.
    """

    status: ProgramStatus
    value: float | None
    bound: float | None
    values: Mapping[int, float]
    seconds: float


def solve(model: Any, seconds: float) -> Answer:
    """Solve a Pyomo model with one active objective within `seconds`, single-threaded, fixed seed.

    No start is handed in: where presolve leaves no whole variable, HiGHS 1.15.1 calls a
    feasible start optimal without looking further (a plan at half the optimum was met). The
    callers keep the best plan so far themselves.
    """
    begun = time.perf_counter()
    form = LinearStandardFormCompiler().write(model, mixed_form=True)
    objective = form.objectives[0]
    # The standard form minimises: it hands over the negated costs of a maximisation.
    sign = -1.0 if objective.sense == -1 else 1.0
    highs = _load(form)
    left = max(SHORTEST_S, seconds - (time.perf_counter() - begun))
    highs.setOptionValue("time_limit", left)
    highs.run()
    return _read(highs, form, sign, time.perf_counter() - begun)


def _load(form: Any) -> Any:
    matrix = form.A.tocsc()
    rows = matrix.shape[0]
    lower, upper = np.full(rows, -highspy.kHighsInf), np.full(rows, highspy.kHighsInf)
    for place, (row, rhs) in enumerate(zip(form.rows, form.rhs, strict=True)):
        # bound_type: 1 is <=, -1 is >=, 0 is =.
        if row.bound_type >= 0:
            upper[place] = rhs
        if row.bound_type <= 0:
            lower[place] = rhs
    least = np.array([_bound(var.lb, -highspy.kHighsInf) for var in form.columns])
    most = np.array([_bound(var.ub, highspy.kHighsInf) for var in form.columns])
    return load(
        "model",
        matrix,
        np.asarray(form.c.todense(), dtype=np.float64).ravel(),
        columns=(least, most),
        rows=(lower, upper),
        whole=np.array([not var.is_continuous() for var in form.columns], dtype=bool),
        offset=float(form.c_offset[0]),
        relative_gap=GAP,
        absolute_gap=ABSOLUTE_GAP,
    )


def _read(highs: Any, form: Any, sign: float, seconds: float) -> Answer:
    status, info = highs.getModelStatus(), highs.getInfo()
    kinds = highspy.HighsModelStatus
    if status == kinds.kInfeasible:
        return Answer("infeasible", None, None, {}, seconds)
    if status in (kinds.kUnbounded, kinds.kUnboundedOrInfeasible):
        # Every variable that is pushed has a bound, so only "infeasible" can be left of the two.
        return Answer("infeasible", None, None, {}, seconds)
    has_plan = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    is_mip = any(not var.is_continuous() for var in form.columns)
    bound: float | None = None
    if is_mip and abs(info.mip_dual_bound) < highspy.kHighsInf:
        bound = sign * info.mip_dual_bound
    elif not is_mip and status == kinds.kOptimal:
        bound = sign * info.objective_function_value
    if not has_plan:
        return Answer("unknown", None, bound, {}, seconds)
    values = highs.getSolution().col_value
    found = {id(var): float(value) for var, value in zip(form.columns, values, strict=True)}
    proven = "optimal" if status == kinds.kOptimal else "feasible"
    return Answer(proven, sign * info.objective_function_value, bound, found, seconds)  # type: ignore[arg-type]


def _bound(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
