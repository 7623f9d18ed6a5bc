"""Whether any plan meets the demands of a request: the exact test behind every explanation."""

from __future__ import annotations

import time
from dataclasses import replace

import pyomo.environ as pyo

from torchsplit_core.planning.expand import expand
from torchsplit_core.planning.formulation import Mode, build
from torchsplit_core.planning.solve import Answer, solve
from torchsplit_core.values import PlanRequest


def is_feasible(request: PlanRequest, deadline: float) -> bool | None:
    """True or False where it is proven, None where time ran out. Objectives play no part."""
    if not any(model.min_throughput_rps for model in request.models):
        # With no minimum the empty plan meets every limit and every co-location.
        return True
    exclusive = _try(request, "exclusive", deadline)
    if exclusive.status in ("optimal", "feasible"):
        # With sharing, whole slices are shares of 1.
        return True
    if request.sharing == "exclusive":
        return False if exclusive.status == "infeasible" else None
    if _try(request, "aggregate", deadline).status == "infeasible":
        return False
    concrete = _try(request, "concrete", deadline)
    if concrete.status == "infeasible":
        return False
    return True if concrete.status in ("optimal", "feasible") else None


def _try(request: PlanRequest, mode: Mode, deadline: float) -> Answer:
    per_gpu = mode == "concrete"
    if mode == "exclusive":
        request = replace(request, sharing="exclusive")
    built = build(expand(request, per_gpu=per_gpu), mode)
    built.model.anything = pyo.Var(bounds=(0, 0))
    built.model.objective = pyo.Objective(expr=built.model.anything)
    return solve(built.model, deadline - time.perf_counter())
