"""Whether any plan meets the demands of a request: the exact test behind every explanation."""

from __future__ import annotations

import time
from dataclasses import replace

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.model import Mode
from torchsplit_core.planning.fractional.pack import pack
from torchsplit_core.planning.fractional.pooled import pool_shares, pooled_minima
from torchsplit_core.planning.patterns import serves
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.request.objective import must_survive
from torchsplit_core.solver.pyomo_model import ModelSolution, pyo, solve
from torchsplit_core.values import Objective, PlanRequest


def is_feasible(request: PlanRequest, deadline: float) -> bool | None:
    """True or False where it is proven, None where time ran out. Objectives play no part."""
    if not any(model.min_throughput_rps for model in request.models):
        # With no minimum the empty plan meets every limit and every co-location.
        return True
    known = _quickly(request, deadline)
    if known is not None:
        return known
    exclusive = _try(request, "exclusive", deadline)
    if exclusive.status in ("optimal", "feasible"):
        # With sharing, whole slices are shares of 1.
        return True
    if request.sharing == "exclusive":
        return False if exclusive.status == "infeasible" else None
    if _try(request, "pooled", deadline).status == "infeasible":
        return False
    concrete = _try(request, "concrete", deadline)
    if concrete.status == "infeasible":
        return False
    return True if concrete.status in ("optimal", "feasible") else None


def _quickly(request: PlanRequest, deadline: float) -> bool | None:
    """What patterns and pooled shares know, which keep no co-location and lose no GPU: a "no" holds all the same."""
    tied = any(item.mode == "hard" for item in request.colocations) or must_survive(request)
    penalty = None if request.objective.memory_violation_penalty is None else 0.0
    free = replace(request, colocations=(), objective=Objective(memory_violation_penalty=penalty))
    if request.sharing == "fractional":
        pooled = build_problem(free)
        if not pooled_minima(pooled):
            return False
        shares = None if tied else pool_shares(pooled, deadline)
        if shares is not None:
            amounts = [(pooled.choices[index], part) for index, part in sorted(shares.amounts.items())]
            if pack(pooled, shares.layouts, amounts) is not None:
                return True
    exclusive = serves(build_problem(replace(free, sharing="exclusive")), deadline)
    if exclusive:
        return None if tied else True
    return False if exclusive is False and request.sharing == "exclusive" else None


def _try(request: PlanRequest, mode: Mode, deadline: float) -> ModelSolution:
    per_gpu = mode == "concrete"
    if mode == "exclusive":
        request = replace(request, sharing="exclusive")
    built = build(build_problem(request, per_gpu=per_gpu), mode)
    built.model.anything = pyo.Var(bounds=(0, 0))
    built.model.objective = pyo.Objective(expr=built.model.anything)
    return solve(built.model, deadline - time.perf_counter())
