"""Shares of slices that keep hard co-locations: a known plan, then the concrete model with them on its layouts.

Near a plan without them the model has its tenants, and of co-located models the best points on every slice, so that
one can follow the other to its GPUs. Near a plan of whole slices that keeps them every model may share the slices of
the GPUs where it is. The bound of the plan without co-locations holds with them, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.objectives import solve_objective
from torchsplit_core.planning.fractional.fixed_layouts import (
    MAX_FIXED_TENANCIES,
    only_tenants,
    planned_layouts,
    reduce_points,
    tenancy_count,
    with_fixed_layouts,
)
from torchsplit_core.planning.fractional.tenancy_counts import counts_of
from torchsplit_core.planning.outcome.assignment import Assignment, assign_shares
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, build_deadline, partial_deadline
from torchsplit_core.values import PlannedGpu, PlanOutcome

MODEL_SHARE = 0.5
"""Part of the remaining time for the concrete model."""


@dataclass(frozen=True)
class ColocatedShares:
    """A plan's shares on slices, of a problem that may have fixed layouts."""

    problem: Problem
    assignment: Assignment


def restore_colocations(
    problem: Problem, free: Problem, planned: PlanOutcome, deadline: float, watch: Stopwatch
) -> ColocatedShares | None:
    """A plan near `planned`, which is of the `free` problem without co-locations; None if none is found in time."""
    layouts = planned_layouts(planned.gpus)
    counts = counts_of(free, planned.gpus)
    if counts is None:
        return None
    fixed = with_fixed_layouts(problem.request, layouts)
    tenants = [free.choices[number] for number in counts.tenancies]
    chosen = {id(choice) for choice in only_tenants(fixed, free, tenants, layouts, nearby=False).choices}
    chosen |= {
        id(choice)
        for choice in reduce_points(fixed).choices
        if fixed.colocation_index.members_at(choice.model, choice.variant, choice.stage)
    }
    few = replace(fixed, choices=tuple(choice for choice in fixed.choices if id(choice) in chosen))
    return _solve_near(few, deadline, watch)


def share_whole_slices(
    problem: Problem, gpus: Sequence[PlannedGpu], deadline: float, watch: Stopwatch
) -> ColocatedShares | None:
    """A plan near one of whole slices that keeps the co-locations, its models on the same GPUs."""
    fixed = reduce_points(with_fixed_layouts(problem.request, planned_layouts(gpus)))
    present = {(gpu.id, tenant.model) for gpu in gpus for item in gpu.slices for tenant in item.tenants}
    models = problem.request.models

    def stays(choice: Choice) -> bool:
        return (fixed.groups[choice.group].gpu_ids[0], models[choice.model].name) in present

    # The program needs points of every case, also of those that are nowhere.
    running = {choice.case for choice in filter(stays, fixed.choices)}
    choices = tuple(choice for choice in fixed.choices if stays(choice) or choice.case not in running)
    return _solve_near(replace(fixed, choices=choices), deadline, watch)


def _solve_near(few: Problem, deadline: float, watch: Stopwatch) -> ColocatedShares | None:
    if tenancy_count(few) > MAX_FIXED_TENANCIES:
        return None
    until = partial_deadline(deadline, MODEL_SHARE)
    try:
        formulation = build(few, "concrete", until=build_deadline(until))
    except OutOfTime:
        return None
    result = solve_objective(formulation, until, level_one_only=True)
    watch.searched_s += result.seconds
    return None if result.best is None else ColocatedShares(few, assign_shares(formulation, result.best))
