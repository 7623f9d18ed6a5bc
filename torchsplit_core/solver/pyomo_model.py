"""Solves a Pyomo model with HiGHS and returns the incumbent, the bound and how the solve ended.

The model is passed in standard form; after a time limit, the incumbent and its bound are returned too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchsplit_core.solver.highs import INF, HighsStatus, Matrix, load_program, run
from torchsplit_core.values.status import ProgramStatus

RELATIVE_GAP = 5e-7
"""Relative gap at which a stage counts as proven: values closer than 1e-6 are equal."""

ABSOLUTE_GAP = 1e-9
"""Absolute gap: HiGHS's default of 1e-6 would end a stage with small values too early."""

MIN_TIME_LIMIT_S = 0.02
"""HiGHS gets at least this long, so that a small model is solved even when time is up."""


def load_pyomo() -> float:
    """Import Pyomo if necessary; returns the seconds it took, which do not count towards a search's time limit."""
    begun = time.perf_counter()
    fresh = "pyomo.environ" not in sys.modules
    import pyomo.environ  # noqa: F401 - waits for another thread's import

    if fresh:
        from pyomo.common.dependencies import DeferredImportCallbackFinder
        from pyomo.repn.plugins.standard_form import _LinearStandardFormCompiler_impl as form

        # If SciPy is present, Pyomo imports scipy.stats, which is not needed: as long again, and 50 MiB.
        DeferredImportCallbackFinder._callbacks.pop("scipy", None)
        import scipy.sparse

        # Pyomo's compiler would set these on first use, through that import.
        form._csc_matrix, form._csr_matrix = scipy.sparse.csc_array, scipy.sparse.csr_array
        form._to_vector = np.fromiter
    return time.perf_counter() - begun


class _LazyPyomo:
    """`pyomo.environ`, imported when one of its names is first used, because most plans need no program."""

    def __getattr__(self, name: str) -> Any:
        load_pyomo()
        import pyomo.environ

        return getattr(pyomo.environ, name)


pyo: Any = _LazyPyomo()
"""The Pyomo namespace in which models are written."""


@dataclass(frozen=True)
class ModelSolution:
    """How a solve ended. `value` and `bound` are in the sense of the model's own objective.

    optimal: proven within the gaps. feasible: an incumbent without proof. infeasible: proven.
    unknown: time ran out without a solution. `values` maps the id of a Pyomo variable to its value.
    """

    status: ProgramStatus
    value: float | None
    bound: float | None
    values: Mapping[int, float]
    seconds: float


FINE_TOLERANCE = 1e-8
"""HiGHS's feasibility tolerance for mixed-integer solutions of models with relatively small figures. With the default
of 10⁻⁶ and penalties of 10⁻⁶ in the rows, it declared plans optimal that were not."""


OnSolution = Callable[[ModelSolution], None] | None


def solve(model: Any, seconds: float, *, fine: bool = False, on_solution: OnSolution = None) -> ModelSolution:
    """Solve a Pyomo model with one active objective within `seconds`; `fine`: to FINE_TOLERANCE.

    `on_solution` gets the values of each improved integer solution during the solve; its time counts.

    No warm start is passed: if presolve leaves no integer variable, HiGHS 1.15.1 declares a feasible
    start optimal without searching (a plan at half the optimum was observed). Callers keep the best
    plan so far themselves. Raises ProgramRejected.
    """
    load_pyomo()
    from pyomo.repn.plugins.standard_form import LinearStandardFormCompiler

    begun = time.perf_counter()
    form = LinearStandardFormCompiler().write(model, mixed_form=True)
    highs = _load_model(form)
    if fine:
        highs.setOptionValue("mip_feasibility_tolerance", FINE_TOLERANCE)
    if on_solution is not None:
        highs.cbMipImprovingSolution.subscribe(
            lambda event: on_solution(
                ModelSolution("feasible", None, None, _values(form, event.data_out.mip_solution), 0.0)
            )
        )
    ending = run(highs, max(MIN_TIME_LIMIT_S, seconds - (time.perf_counter() - begun)))
    return _read_solution(highs, form, ending, time.perf_counter() - begun)


def _load_model(form: Any) -> Any:
    entries = form.A.tocsc()
    matrix = Matrix(
        entries.shape,
        entries.indptr.astype(np.int32),
        entries.indices.astype(np.int32),
        entries.data.astype(np.float64),
    )
    rows = matrix.shape[0]
    lower, upper = np.full(rows, -INF), np.full(rows, INF)
    for index, (row, rhs) in enumerate(zip(form.rows, form.rhs, strict=True)):
        # bound_type: 1 is <=, -1 is >=, 0 is =.
        if row.bound_type >= 0:
            upper[index] = rhs
        if row.bound_type <= 0:
            lower[index] = rhs
    least = np.array([_bound(var.lb, -INF) for var in form.columns])
    most = np.array([_bound(var.ub, INF) for var in form.columns])
    return load_program(
        "model",
        matrix,
        np.asarray(form.c.todense(), dtype=np.float64).ravel(),
        columns=(least, most),
        rows=(lower, upper),
        integer=np.array([not var.is_continuous() for var in form.columns], dtype=bool),
        offset=float(form.c_offset[0]),
        relative_gap=RELATIVE_GAP,
        absolute_gap=ABSOLUTE_GAP,
    )


def _read_solution(highs: Any, form: Any, ending: HighsStatus, seconds: float) -> ModelSolution:
    if ending == "unbounded":
        # Every variable in the objective is bounded, so only "infeasible" is possible.
        ending = "infeasible"
    if ending == "infeasible":
        return ModelSolution("infeasible", None, None, {}, seconds)
    # The standard form minimises, so the costs of a maximisation are negated.
    sign = -1.0 if form.objectives[0].sense == -1 else 1.0
    info = highs.getInfo()
    is_mip = any(not var.is_continuous() for var in form.columns)
    bound: float | None = None
    if is_mip and abs(info.mip_dual_bound) < INF:
        bound = sign * info.mip_dual_bound
    elif not is_mip and ending == "optimal":
        bound = sign * info.objective_function_value
    if ending == "unknown":
        return ModelSolution("unknown", None, bound, {}, seconds)
    values = _values(form, highs.getSolution().col_value)
    return ModelSolution(ending, sign * info.objective_function_value, bound, values, seconds)


def _values(form: Any, columns: Iterable[float]) -> dict[int, float]:
    return {id(var): float(value) for var, value in zip(form.columns, columns, strict=True)}


def _bound(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
