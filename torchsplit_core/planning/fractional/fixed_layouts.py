"""Problems in which the layouts of GPUs are fixed, with fewer tenants: programs that are told apart slice by slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchsplit_core.planning.problem.build import CandidateLayout, Choice, Problem, build_problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import FleetEntry, PlannedGpu, PlanRequest

MAX_EXACT_TENANCIES = 3000
"""Tenancies (binaries) up to which the concrete model is searched with free layouts."""

MAX_FIXED_TENANCIES = 12000
"""The same with fixed layouts."""


def planned_layouts(gpus: Sequence[PlannedGpu]) -> dict[str, tuple[str, ...]]:
    """The profiles of the used GPUs by their id."""
    return {gpu.id: tuple(item.profile for item in gpu.slices) for gpu in gpus if gpu.used}


def with_fixed_layouts(request: PlanRequest, layouts: Mapping[str, tuple[str, ...]]) -> Problem:
    """The problem per slice with these layouts (by id of the GPU) fixed; the other GPUs stay free."""
    fixed = build_problem(replace(request, gpus=fixed_fleet(request, layouts)), per_gpu=True)
    # The plan answers the original request, not the one with fixed layouts.
    return replace(fixed, request=request)


def fixed_fleet(request: PlanRequest, layouts: Mapping[str, tuple[str, ...]]) -> tuple[FleetEntry, ...]:
    """The fleet GPU by GPU, with these layouts (by id) alone allowed; the other GPUs stay free."""
    return tuple(
        gpu.entry((layouts[gpu.id],) if gpu.id in layouts else None, id=gpu.id)
        for gpu in list_gpus(request.gpus)
    )


def only_tenants(
    fixed: Problem,
    counted: Problem,
    tenants: Sequence[Choice],
    layouts: Mapping[str, tuple[str, ...]],
    *,
    nearby: bool,
) -> Problem:
    """The fixed problem with the `tenants` of the counted one; `nearby`: with all points of their stages there."""

    def key(problem: Problem, choice: Choice) -> tuple[object, ...]:
        kind = problem.groups[choice.group].type
        place = (kind, choice.profile, choice.model, choice.variant, choice.stage)
        return place if nearby else (*place, choice.point)

    chosen = {key(counted, choice) for choice in tenants}
    offered = [c for c in fixed.choices if fixed.groups[c.group].gpu_ids[0] in layouts]
    running = {choice.case for choice in offered if key(fixed, choice) in chosen}
    # The program needs points of every case, also of those without tenants.
    choices = tuple(c for c in offered if key(fixed, c) in chosen or c.case not in running)
    return replace(fixed, choices=choices)


def may_be_searched(problem: Problem, layouts: Mapping[str, tuple[str, ...]]) -> bool:
    """False if the program of fixed layouts (by id of the GPU) is too large even with one point a stage and slice.

    `problem` counts equal GPUs together; its program is told apart slice by slice, which takes seconds to write.
    """
    stages: dict[tuple[int, str], set[tuple[int, int]]] = {}
    for choice in problem.choices:
        stages.setdefault((choice.group, choice.profile), set()).add((choice.case, choice.stage))
    group_of = {gpu: g for g, group in enumerate(problem.groups) for gpu in group.gpu_ids}
    tenancies = sum(
        len(stages.get((group_of[gpu], profile), ()))
        for gpu, profiles in layouts.items()
        for profile in profiles
    )
    return tenancies <= MAX_FIXED_TENANCIES


def reduce_points(problem: Problem) -> Problem:
    """At most two points a stage and slice: the most throughput, and the most within a third of the limit."""
    best: dict[tuple[int, int, int, str, bool], Choice] = {}
    for choice in problem.choices:
        budget = problem.cases[choice.case].budget_ms
        quick = budget is not None and choice.point.latency_ms <= budget / 3
        for kind in {False, quick}:
            key = (choice.case, choice.stage, choice.group, choice.profile, kind)
            if key not in best or choice.rate_rps > best[key].rate_rps:
                best[key] = choice
    chosen = {id(choice) for choice in best.values()}
    return replace(problem, choices=tuple(choice for choice in problem.choices if id(choice) in chosen))


def tenancy_count(problem: Problem) -> int:
    """Tenancies of the concrete program of these GPUs, each GPU separately."""
    groups = problem.groups
    most = [_most_slices(layouts) for layouts in (group.layouts for group in groups)]
    return sum(
        len(groups[choice.group].gpu_ids) * most[choice.group].get(choice.profile, 0)
        for choice in problem.choices
    )


def _most_slices(layouts: Iterable[CandidateLayout]) -> Counter[str]:
    """By profile, the most useful slices of it in one layout."""
    most: Counter[str] = Counter()
    for layout in layouts:
        most |= Counter(layout.usable_counts)
    return most
