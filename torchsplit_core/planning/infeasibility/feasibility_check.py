"""Whether any plan meets the demands of a request: the exact test behind conflicts and probes."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.model import Mode
from torchsplit_core.planning.fractional.packing import pack_shares
from torchsplit_core.planning.fractional.relaxation import aggregate_shares, relaxation_meets_minima
from torchsplit_core.planning.patterns import patterns_meet_minima
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import requires_resilience
from torchsplit_core.solver.pyomo_model import ModelSolution, pyo, solve
from torchsplit_core.values import Objective, PlanRequest


def is_feasible(request: PlanRequest, deadline: float) -> bool | None:
    """True or False if proven, None if time ran out. Ignores the objective."""
    if not any(model.min_throughput_rps for model in request.models):
        # Without a minimum the empty plan meets every limit and co-location.
        return True
    known = _quick_feasibility(request, deadline)
    if known is not None:
        return known
    exclusive = _solve(request, "exclusive", deadline)
    if exclusive.status in ("optimal", "feasible"):
        # With sharing, whole slices are shares of 1.
        return True
    if request.sharing == "exclusive":
        return False if exclusive.status == "infeasible" else None
    if _solve(request, "pooled", deadline).status == "infeasible":
        return False
    concrete = _solve(request, "concrete", deadline)
    if concrete.status == "infeasible":
        return False
    return True if concrete.status in ("optimal", "feasible") else None


def _quick_feasibility(request: PlanRequest, deadline: float) -> bool | None:
    """By patterns and pooled shares, which ignore co-locations and the loss of a GPU: a proven "no" still holds."""
    tied = any(item.mode == "hard" for item in request.colocations) or requires_resilience(request)
    penalty = None if request.objective.memory_violation_penalty is None else 0.0
    free = replace(request, colocations=(), objective=Objective(memory_violation_penalty=penalty))
    if request.sharing == "fractional":
        pooled = build_problem(free)
        if not relaxation_meets_minima(pooled):
            return False
        shares = None if tied else aggregate_shares(pooled, deadline)
        if shares is not None:
            amounts = [(pooled.choices[index], part) for index, part in sorted(shares.amounts.items())]
            if pack_shares(pooled, shares.layouts, amounts) is not None:
                return True
    exclusive = patterns_meet_minima(build_problem(replace(free, sharing="exclusive")), deadline)
    if exclusive:
        return None if tied else True
    return False if exclusive is False and request.sharing == "exclusive" else None


def _solve(request: PlanRequest, mode: Mode, deadline: float) -> ModelSolution:
    per_gpu = mode == "concrete"
    if mode == "exclusive":
        request = replace(request, sharing="exclusive")
    formulation = build(build_problem(request, per_gpu=per_gpu), mode)
    formulation.model.anything = pyo.Var(bounds=(0, 0))
    formulation.model.objective = pyo.Objective(expr=formulation.model.anything)
    return solve(formulation.model, deadline - time.perf_counter())
