"""Turns counts into a plan: assigns layouts to GPUs, tenants to slices, and slices to placement starts.

This loses nothing: the GPUs of a group are equal, so layouts can be assigned to them in any order, and whole instances
to equal slices likewise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.solution import Solution
from torchsplit_core.planning.outcome.tenants import tenant_of
from torchsplit_core.planning.problem.build import Choice, Problem
from torchsplit_core.planning.problem.colocation_sets import distribute_members
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.values import (
    WHOLE_GPU,
    InternalFault,
    Layout,
    PlannedGpu,
    PlannedSlice,
    PlanRequest,
    Tenant,
)


@dataclass
class AssignedSlice:
    """A slice of a GPU and its tenants so far, as (choice, share) pairs."""

    gpu_id: str
    group: int
    profile: str
    tenants: list[tuple[Choice, float]] = field(default_factory=list)

    @property
    def free_share(self) -> float:
        """The share of the slice without a tenant."""
        return max(0.0, 1.0 - sum(share for _, share in self.tenants))


@dataclass
class Assignment:
    """The slices of the whole fleet, and each GPU's layout (`layouts`: profiles; `columns`: group, number).

    `together`: the real GPUs of each that stands for several.
    """

    slices: list[AssignedSlice]
    layouts: dict[str, tuple[str, ...]]
    columns: dict[str, tuple[int, int]]
    together: dict[str, tuple[str, ...]] = field(default_factory=dict)


def assign_layouts(problem: Problem, layouts: Mapping[tuple[int, int], int]) -> Assignment:
    """Assign the layouts of each group to its GPUs in order; every useful slice can take tenants.

    First come the GPUs that engines take together: of any node that has enough of them left, the largest first.
    """
    assignment = Assignment([], {}, {})
    _take_together(problem, layouts, assignment)
    for g, group in enumerate(problem.groups):
        names = (name for name in group.gpu_ids if name not in assignment.layouts)
        for number, layout in enumerate(group.layouts):
            for _ in range(layouts.get((g, number), 0)):
                gpu_id = next(names)
                assignment.layouts[gpu_id] = layout.profiles
                assignment.columns[gpu_id] = (g, number)
                for profile in sorted(layout.usable_counts):
                    assignment.slices += [
                        AssignedSlice(gpu_id, g, profile) for _ in range(layout.usable_counts[profile])
                    ]
    return assignment


def _take_together(problem: Problem, layouts: Mapping[tuple[int, int], int], assignment: Assignment) -> None:
    node_of = {gpu.id: gpu.node for gpu in list_gpus(problem.request.gpus)}
    free = {
        g: Counter(node_of[name] for name in group.gpu_ids)
        for g, group in enumerate(problem.groups)
        if not group.parts
    }
    wanted = [
        (sum(count for _, count in group.parts), g) for g, group in enumerate(problem.groups) if group.parts
    ]
    for _, g in sorted(wanted, key=lambda item: -item[0]):
        group = problem.groups[g]
        used = sum(layouts.get((g, number), 0) for number in range(len(group.layouts)))
        for name in group.gpu_ids[:used]:
            nodes = free[group.parts[0][0]]
            node = next(
                (node for node in nodes if all(free[part][node] >= count for part, count in group.parts)),
                None,
            )
            taken: list[str] = []
            for part, count in group.parts:
                left = [
                    gpu
                    for gpu in problem.groups[part].gpu_ids
                    if node_of[gpu] == node and gpu not in assignment.layouts
                ]
                taken += left[:count]
                free[part][node] -= count
                assignment.layouts |= dict.fromkeys(left[:count], (WHOLE_GPU,))
            if len(taken) < sum(count for _, count in group.parts):
                raise InternalFault("The planner's counts hold more groups of GPUs than fit on nodes.")
            assignment.together[name] = tuple(taken)


def assign_integer(formulation: Formulation, solution: Solution) -> Assignment:
    """Assign the whole instances of a formulation's solution, co-located ones to GPUs with their layout."""
    amounts = [
        (formulation.slice_uses[use], round(solution.amounts[use])) for use in sorted(solution.amounts)
    ]
    assignment = assign_layouts(formulation.problem, solution.layouts)
    for (g, number), count in solution.layouts.items():
        instances = [
            (use.choice, times) for use, times in amounts if (use.choice.group, use.layout) == (g, number)
        ]
        if instances:
            _assign_colocated(assignment, formulation.problem, g, number, count, instances)
    _assign_anywhere(assignment, [(use.choice, times) for use, times in amounts if use.layout is None])
    return assignment


@dataclass(frozen=True)
class ColocatedGpus:
    """`count` GPUs with a layout (group, number), and the instances by choice that each of them has together."""

    column: tuple[int, int]
    instances: tuple[tuple[Choice, int], ...]
    count: int


def assign_instances(
    problem: Problem,
    layouts: Mapping[tuple[int, int], int],
    amounts: Sequence[tuple[Choice, int]],
    together: Sequence[ColocatedGpus] = (),
) -> Assignment:
    """Assign whole instances (exclusive) to slices of their group and profile, in the given order.

    Those of the GPUs `together` come first, each on a GPU of its own.
    """
    assignment = assign_layouts(problem, layouts)
    if together:
        _assign_together(assignment, together)
    _assign_anywhere(assignment, amounts)
    return assignment


def _assign_together(assignment: Assignment, together: Sequence[ColocatedGpus]) -> None:
    unused: dict[tuple[int, int], list[str]] = {}
    for gpu_id, column in assignment.columns.items():
        unused.setdefault(column, []).append(gpu_id)
    by_gpu: dict[str, list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        by_gpu.setdefault(slice_.gpu_id, []).append(slice_)
    for part in together:
        for _ in range(part.count):
            free = by_gpu[unused[part.column].pop()]
            for choice, times in part.instances:
                same = [item for item in free if item.profile == choice.profile and not item.tenants]
                for slice_ in same[:times]:
                    slice_.tenants.append((choice, 1.0))


def _assign_anywhere(assignment: Assignment, amounts: Sequence[tuple[Choice, int]]) -> None:
    waiting: dict[tuple[int, str], list[Choice]] = {}
    for choice, count in amounts:
        waiting.setdefault((choice.group, choice.profile), []).extend([choice] * count)
    for slice_ in assignment.slices:
        queue = waiting.get((slice_.group, slice_.profile))
        if queue and not slice_.tenants:
            slice_.tenants.append((queue.pop(0), 1.0))
    if any(waiting.values()):
        raise InternalFault("The planner's counts hold more instances than slices.")


def _assign_colocated(
    assignment: Assignment,
    problem: Problem,
    group: int,
    number: int,
    gpus: int,
    amounts: Sequence[tuple[Choice, int]],
) -> None:
    """Assign an instance of every needed member to each GPU with the layout, then the rest to any of these GPUs."""
    layout, colocation_index = problem.groups[group].layouts[number], problem.colocation_index
    ids = [gpu for gpu, (g, chosen) in assignment.columns.items() if (g, chosen) == (group, number)]
    waiting: dict[tuple[int, str], list[Choice]] = {}
    for choice, count in amounts:
        member = colocation_index.most_specific(choice.model, choice.variant, choice.stage)
        assert member is not None, "what has a layout of its own is co-located"
        waiting.setdefault((member, choice.profile), []).extend([choice] * count)
    needed = colocation_index.minimal_members(layout.present_members or frozenset())
    counts: dict[int, dict[str, int]] = {}
    for (member, profile), queue in waiting.items():
        if member in needed:
            counts.setdefault(member, {})[profile] = len(queue)
    free: dict[tuple[str, str], list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        if slice_.gpu_id in ids:
            free.setdefault((slice_.gpu_id, slice_.profile), []).append(slice_)
    for gpu, profiles in zip(ids, distribute_members(counts, layout.usable_counts, gpus), strict=True):
        for member, profile in profiles.items():
            free[gpu, profile].pop(0).tenants.append((waiting[member, profile].pop(0), 1.0))
    for (_, profile), queue in waiting.items():
        for gpu in ids:
            while queue and free.get((gpu, profile)):
                free[gpu, profile].pop(0).tenants.append((queue.pop(0), 1.0))
        if queue:
            raise InternalFault("The planner's counts hold more instances than slices.")


def assign_shares(formulation: Formulation, solution: Solution) -> Assignment:
    """Assign the shares of a concrete formulation, which has determined their slices."""
    assignment = assign_layouts(formulation.problem, solution.layouts)
    by_pool: dict[tuple[int, str], list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        by_pool.setdefault((slice_.group, slice_.profile), []).append(slice_)
    for use, share in sorted(solution.amounts.items()):
        choice, number = formulation.slice_uses[use].choice, formulation.slice_uses[use].slot
        assert number is not None
        by_pool[choice.group, choice.profile][number].tenants.append((choice, share))
    for slice_ in assignment.slices:
        slice_.tenants = list(_one_of_each(slice_.tenants))
        total = sum(share for _, share in slice_.tenants)
        if total > 1.0:
            slice_.tenants = [(choice, share / total) for choice, share in slice_.tenants]
    return assignment


def _one_of_each(tenants: Sequence[tuple[Choice, float]]) -> Iterator[tuple[Choice, float]]:
    """The tenants, several of one stage as the quickest of them: it takes less memory than all, and is as good."""
    of_stage: dict[tuple[int, int], list[tuple[Choice, float]]] = {}
    for choice, share in tenants:
        of_stage.setdefault((choice.case, choice.stage), []).append((choice, share))
    for same in of_stage.values():
        quickest = max((choice for choice, _ in same), key=lambda choice: choice.rate_rps)
        total = sum(share for _, share in same)
        if len(same) == 1 or quickest.cap_rps < total * quickest.rate_rps:
            yield from same
        else:
            yield quickest, total


def build_planned_gpus(request: PlanRequest, assignment: Assignment) -> tuple[PlannedGpu, ...]:
    """Every GPU of the fleet, with its slices at legal starts; a GPU without a tenant has no slices."""
    by_gpu: dict[str, list[AssignedSlice]] = {}
    for slice_ in assignment.slices:
        by_gpu.setdefault(slice_.gpu_id, []).append(slice_)
    group_of = _named_groups(request, assignment)
    planned = []
    for gpu in list_gpus(request.gpus):
        group = group_of.get(gpu.id)
        if group is not None:
            name, slice_ = group
            (tenant,) = _tenants(request, slice_.tenants)
            assert tenant.engine is not None
            tenant = replace(tenant, engine=replace(tenant.engine, group=name))
            mig = False if gpu.either else None
            whole = PlannedSlice(WHOLE_GPU, 0, (tenant,))
            planned.append(PlannedGpu(gpu.id, gpu.type, True, (whole,), mig, name))
            continue
        rest = by_gpu.get(gpu.id, [])
        if not any(slice_.tenants for slice_ in rest):
            planned.append(PlannedGpu(gpu.id, gpu.type, False))
            continue
        layout = _place_layout(gpu.type, assignment.layouts[gpu.id])
        if layout is None:
            raise InternalFault(f"{gpu.id} was given a layout that is not legal.")
        slices = []
        for item in layout.placed:
            tenants: tuple[Tenant, ...] = ()
            # Idle slices of a profile come after the busy ones in start order.
            same = [slice_ for slice_ in rest if slice_.profile == item.profile]
            if same:
                chosen = min(same, key=lambda slice_: (not slice_.tenants, rest.index(slice_)))
                rest.remove(chosen)
                tenants = _tenants(request, chosen.tenants)
            slices.append(PlannedSlice(item.profile, item.start, tenants))
        mig = assignment.layouts[gpu.id] != (WHOLE_GPU,) if gpu.either else None
        planned.append(PlannedGpu(gpu.id, gpu.type, True, tuple(slices), mig))
    return tuple(planned)


def _named_groups(request: PlanRequest, assignment: Assignment) -> dict[str, tuple[str, AssignedSlice]]:
    """By GPU that an engine takes together with others, the name of the group and the slice that stands for it.

    Groups are group0, group1, … in the order of the fleet.
    """
    slice_of = {
        gpu: slice_
        for slice_ in assignment.slices
        if slice_.tenants
        for gpu in assignment.together.get(slice_.gpu_id, ())
    }
    names: dict[str, str] = {}
    named: dict[str, tuple[str, AssignedSlice]] = {}
    for gpu in list_gpus(request.gpus) if slice_of else ():
        if gpu.id in slice_of:
            slice_ = slice_of[gpu.id]
            name = names.setdefault(slice_.gpu_id, f"group{len(names)}")
            named[gpu.id] = name, slice_
    return named


@lru_cache(maxsize=1024)
def _place_layout(kind: str, profiles: tuple[str, ...]) -> Layout | None:
    """`hardware.place_layout`, cached, since large fleets repeat a few layouts."""
    return place_layout(gpu_type(kind), profiles)


def _tenants(request: PlanRequest, tenants: Sequence[tuple[Choice, float]]) -> tuple[Tenant, ...]:
    built = []
    for choice, share in tenants:
        model = request.models[choice.model]
        variant = model.variants[choice.variant]
        built.append(
            tenant_of(
                model.name, variant.name, variant.stages[choice.stage].name, choice.point,
                share, planned_rps(request, choice.point),
            )
        )  # fmt: skip
    return tuple(built)
