"""The best plan that touches at most `objective.max_touched_gpus` of the GPUs that run something now."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import replace

from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.objectives import find_any_plan, solve_objective
from torchsplit_core.planning.formulation.solution import Solution
from torchsplit_core.planning.outcome.assignment import assign_integer, assign_shares
from torchsplit_core.planning.outcome.build import build_plan_outcome, no_plan
from torchsplit_core.planning.problem.build import GpuGroup, Problem, build_problem
from torchsplit_core.planning.problem.held_gpus import (
    HeldGpu,
    held_gpus,
    points_in_use,
    running_engines,
    touched_gpus,
)
from torchsplit_core.planning.problem.touch_limit import with_held_gpus
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, build_deadline
from torchsplit_core.planning.traffic.minimization import ranks_by_traffic
from torchsplit_core.values import PlannedGpu, PlannedSlice, PlanOutcome, PlanRequest, Progress, Tenant
from torchsplit_core.values.status import Unsolved

ANY_S = 1.0
"""Most seconds beyond the limit to find any plan at all."""


def plan_limited_change(
    request: PlanRequest, watch: Stopwatch, deadline: float, progress: Progress
) -> PlanOutcome:
    """The best plan found before the deadline (time.perf_counter), not verified; infeasible or timeout without one.

    GPUs that stay keep the starts of their instances.
    """
    held = held_gpus(request)
    running, shared = running_engines(request), request.sharing == "fractional"
    grouped = any(point.tensor_parallel > 1 for model in request.models for point in model.points)
    per_gpu = shared or grouped or bool(request.colocations)
    problem = build_problem(request, per_gpu=per_gpu, in_use=points_in_use(held, running))
    problem = with_held_gpus(problem, held, running)
    deadline += watch.load_solver()
    try:
        formulation = build(problem, "concrete" if shared else "exclusive", until=build_deadline(deadline))
    except OutOfTime:
        return no_plan(request, "timeout", watch.statistics({}), problem.warnings)
    result = solve_objective(formulation, deadline, progress=progress)
    watch.searched_s += result.seconds
    if result.best is None and result.status == "timeout":
        result = find_any_plan(formulation, max(ANY_S, deadline - time.perf_counter()))
        watch.searched_s += result.seconds
    if result.best is None:
        ended: Unsolved = "infeasible" if result.status == "infeasible" else "timeout"
        return no_plan(request, ended, watch.statistics({}), problem.warnings)
    return _outcome(formulation, result, result.best, held, watch)


def _outcome(
    formulation: Formulation,
    result: LevelsResult,
    best: Solution,
    held: dict[str, HeldGpu],
    watch: Stopwatch,
) -> PlanOutcome:
    request = formulation.problem.request
    problem = _shared_out(formulation.problem, best)
    formulation = replace(formulation, problem=problem)
    assign = assign_shares if formulation.mode == "concrete" else assign_integer
    staying = {name for group in problem.groups if group.held is not None for name in group.gpu_ids}
    outcome = build_plan_outcome(
        problem,
        assign(formulation, best),
        proven=result.proven,
        tie_break_proven=result.status == "optimal" and not ranks_by_traffic(request),
        bounds=result.bounds,
        statistics=watch.statistics({"stages": result.levels, "method": "held GPUs"}),
    )
    figures: _Figures = {}
    for gpu in outcome.gpus:
        for item in gpu.slices:
            for tenant in item.tenants:
                figures.setdefault(_figures_key(gpu, item.profile, tenant), []).append(tenant)
    gpus = tuple(_as_now(gpu, held[gpu.id], figures) if gpu.id in staying else gpu for gpu in outcome.gpus)
    return replace(outcome, gpus=gpus, touched_gpus=touched_gpus(request, gpus))


def _shared_out(problem: Problem, best: Solution) -> Problem:
    """The problem with each GPU in one group: of those that hold the same the first ones stay."""
    groups: list[GpuGroup] = list(problem.groups)
    for number, group in enumerate(problem.groups):
        if group.held is not None and group.instead is not None:
            staying = best.layouts.get((number, 0), 0)
            groups[number] = replace(group, gpu_ids=group.gpu_ids[:staying])
            groups[group.instead] = replace(groups[group.instead], gpu_ids=group.gpu_ids[staying:])
    return replace(problem, groups=tuple(groups))


_Figures = dict[tuple[str, str, Hashable], list[Tenant]]
"""Planned tenants by GPU type, profile, and what makes a tenant but for its share."""


def _figures_key(gpu: PlannedGpu, profile: str, tenant: Tenant) -> tuple[str, str, Hashable]:
    return gpu.type, profile, tenant_key(replace(tenant, share=1.0))


def _as_now(gpu: PlannedGpu, held: HeldGpu, figures: _Figures) -> PlannedGpu:
    """The GPU with its instances of now, tenants with the figures of the request's points."""

    def planned(profile: str, tenant: Tenant) -> Tenant:
        # The solver keeps a share to its tolerance only.
        alike = figures[_figures_key(gpu, profile, tenant)]
        return replace(min(alike, key=lambda known: abs(known.share - tenant.share)), share=tenant.share)

    slices = tuple(
        PlannedSlice(
            item.profile, item.start, tuple(planned(item.profile, tenant) for tenant in item.tenants)
        )
        for item in held.slices
    )
    return replace(gpu, used=any(item.tenants for item in slices), slices=slices)
