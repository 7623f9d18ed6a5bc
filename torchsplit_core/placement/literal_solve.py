"""The literal program through HiGHS: one thread, a fixed seed, incumbent and bound told apart.

Feasibility tolerances stay at HiGHS's defaults; what comes back is read as whole numbers, and its value is
reckoned from the allocations and connections themselves.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import highspy
import numpy as np
from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

from torchsplit_core.placement.instance import Found, Instance
from torchsplit_core.placement.literal import Literal, NothingFits, OutOfTime, build
from torchsplit_core.values import InputFault, InternalFault

GAP = 5e-7
"""Relative gap at which HiGHS may end: values closer than 1e-6 are equal."""

EQUAL = 1e-6

SHORTEST_S = 0.02
"""HiGHS gets at least this long: a small program is solved even when time is up."""


def solver_name() -> str:
    """Name and version for the statistics of an outcome."""
    return f"highs {highspy.Highs().version()}"


def solve_literal(instance: Instance, *, time_limit_s: float) -> Found:
    """Build the literal program and solve it within the time. Raises InputFault where it is too large to build.

    Statistics: allocations, connections, variables, build_s, solve_s.
    """
    begun = time.perf_counter()
    try:
        built = build(instance, begun + time_limit_s)
    except NothingFits:
        return Found(0.0, 0.0, True, (), {"allocations": 0, "connections": 0, "build_s": _since(begun)})
    except OutOfTime:
        return Found(0.0, float("inf"), False, (), {"build_s": _since(begun)})
    form = LinearStandardFormCompiler().write(built.model, mixed_form=True)
    highs = _load(form)
    build_s = _since(begun)
    highs.setOptionValue("time_limit", max(SHORTEST_S, time_limit_s - build_s))
    highs.run()
    statistics = {
        "allocations": len(built.allocations),
        "connections": len(built.connections),
        "variables": built.variables,
        "build_s": build_s,
        "solve_s": _since(begun) - build_s,
    }
    kinds, status, info = highspy.HighsModelStatus, highs.getModelStatus(), highs.getInfo()
    if status in (kinds.kInfeasible, kinds.kUnboundedOrInfeasible):
        # t has a bound in every row it is in, so "unbounded" cannot be what is left of the two.
        return Found(0.0, 0.0, True, (), statistics)
    most = max(a.throughput for a in built.allocations)
    # The standard form minimises −t.
    bound = min(most, -info.mip_dual_bound) if abs(info.mip_dual_bound) < highspy.kHighsInf else most
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Found(0.0, bound, False, (), statistics)
    named = {var.name: x for var, x in zip(form.columns, highs.getSolution().col_value, strict=True)}
    value, segments = _read(built, named)
    proven = status == kinds.kOptimal and bound - value <= EQUAL * bound
    return Found(value, value if proven else max(bound, value), proven, segments, statistics)


def _since(begun: float) -> float:
    return time.perf_counter() - begun


def _load(form: Any) -> Any:
    matrix = form.A.tocsc()
    count = matrix.shape[0]
    rows = np.full(count, -highspy.kHighsInf), np.full(count, highspy.kHighsInf)
    for place, (row, limit) in enumerate(zip(form.rows, form.rhs, strict=True)):
        # bound_type: 1 is <=, -1 is >=, 0 is =.
        if row.bound_type >= 0:
            rows[1][place] = limit
        if row.bound_type <= 0:
            rows[0][place] = limit
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_ = np.asarray(form.c.todense(), dtype=np.float64).ravel()
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.array([highspy.kHighsInf if var.ub is None else var.ub for var in form.columns])
    lp.row_lower_, lp.row_upper_ = rows
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = matrix.indptr.astype(np.int32)
    lp.a_matrix_.index_ = matrix.indices.astype(np.int32)
    lp.a_matrix_.value_ = matrix.data.astype(np.float64)
    integer, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [real if var.is_continuous() else integer for var in form.columns]
    highs = highspy.Highs()
    for option, setting in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_rel_gap", GAP),
        ("mip_abs_gap", 1e-9),
    ):
        highs.setOptionValue(option, setting)
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise InputFault(
            "solver.method",
            "literal",
            f"HiGHS takes coefficients up to 1e15, and throughputs here reach {abs(matrix.data).max():.3g}",
            "Use the method exact, or check the units of bandwidths and throughputs.",
        )
    return highs


def _read(built: Literal, named: dict[str, float]) -> tuple[float, tuple[tuple[int, tuple[int, ...]], ...]]:
    """The chosen segments in pipeline order and the least of their and their links' throughputs."""
    chosen = [place for place in range(len(built.allocations)) if named.get(f"z[{place}]", 0.0) > 0.5]
    chosen.sort(key=lambda place: built.allocations[place].start)
    links = {(c.source, c.target): c.throughput for c in built.connections}
    value = min(built.allocations[place].throughput for place in chosen)
    for pair in pairwise(chosen):
        if pair not in links:
            raise InternalFault("The literal program chose neighbours that no link joins.")
        value = min(value, links[pair])
    segments = tuple(
        (built.allocations[place].end - built.allocations[place].start + 1, built.allocations[place].gpus)
        for place in chosen
    )
    return value, segments
