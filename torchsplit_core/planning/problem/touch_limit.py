"""A problem in which GPUs may stay as they are now, for plans that touch only some of them.

Each group of GPUs that hold the same becomes two: one whose GPUs stay, with the layout and the instances of now, and
one whose GPUs are planned anew. How many are in which is the program's decision (family `held`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torchsplit_core.planning.problem.build import CandidateLayout, Choice, GpuGroup, Problem
from torchsplit_core.planning.problem.engine_groups import GpuLimit
from torchsplit_core.planning.problem.held_gpus import HeldGpu, RunningEngine, by_content
from torchsplit_core.values import WHOLE_GPU


def with_held_gpus(
    problem: Problem, held: Mapping[str, HeldGpu], running: Sequence[RunningEngine] = ()
) -> Problem:
    """The problem with groups split by what their GPUs hold; built with the points in use.

    Where engines run or may run on several GPUs, it is one of GPUs that are told apart.
    """
    groups: list[GpuGroup] = []
    choices: list[Choice] = []
    split: list[list[int]] = []
    for number, group in enumerate(problem.groups):
        split.append([])
        if group.parts:
            parts = tuple((split[part][0], count) for part, count in group.parts)
            split[-1].append(len(groups))
            choices += [replace(c, group=len(groups)) for c in problem.choices if c.group == number]
            groups.append(replace(group, parts=parts))
            continue
        candidates = [choice for choice in problem.choices if choice.group == number]
        offered = {name for layout in group.layouts for name in layout.usable_counts}
        for content, ids in by_content(group.gpu_ids, held):
            layouts = () if content.is_fixed else group.layouts
            anew = len(groups)
            split[-1].append(anew)
            must_change = bool(content.slices) and content.occupants is None
            groups.append(replace(group, gpu_ids=ids, layouts=layouts, twin_of=None, must_change=must_change))
            if layouts:
                choices += [replace(c, group=anew) for c in candidates if c.profile in offered]
            if content.slices and not must_change:
                choices += _held_choices(content, candidates, len(groups))
                split[-1].append(len(groups))
                groups.append(_held_group(group, ids, content, anew))
    limits = [
        GpuLimit(tuple((new, count) for g, count in limit.takes for new in split[g]), limit.most)
        for limit in problem.limits
    ]
    whole = replace(problem, groups=tuple(groups), choices=tuple(choices), limits=tuple(limits))
    for engine in running:
        whole = _with_running(whole, engine)
    return whole


def _with_running(problem: Problem, engine: RunningEngine) -> Problem:
    """With a group in which the GPUs of an engine stay as they are now; unchanged where no case has its point."""
    choice = next(
        (c for c in problem.choices if (c.model, c.variant, c.stage, c.point) == engine.occupant), None
    )
    if choice is None:
        return problem
    number = len(problem.groups)
    own_groups = [
        next(g for g, group in enumerate(problem.groups) if gpu in group.gpu_ids) for gpu in engine.gpu_ids
    ]
    groups = [
        replace(group, stays_in=number) if g in own_groups else group
        for g, group in enumerate(problem.groups)
    ]
    groups.append(
        GpuGroup(
            groups[own_groups[0]].type,
            (f"{number}: {' '.join(engine.gpu_ids)}",),
            sum(groups[g].cost for g in own_groups),
            (CandidateLayout({WHOLE_GPU: 1}, (WHOLE_GPU,)),),
            parts=tuple((g, 1) for g in own_groups),
        )
    )
    limits = [
        replace(limit, takes=(*limit.takes, (number, 1))) if limit.takes[0][0] in own_groups else limit
        for limit in problem.limits
    ]
    limited = {limit.takes[0][0] for limit in problem.limits}
    limits += [GpuLimit(((g, 1), (number, 1)), 1) for g in own_groups if g not in limited]
    stays = replace(choice, group=number)
    return replace(problem, groups=tuple(groups), choices=(*problem.choices, stays), limits=tuple(limits))


def _held_group(group: GpuGroup, ids: tuple[str, ...], content: HeldGpu, anew: int) -> GpuGroup:
    busy = [item for item in content.slices if item.tenants]
    layout = CandidateLayout(
        Counter(item.profile for item in busy), tuple(sorted(item.profile for item in content.slices))
    )
    cost = group.cost if busy else 0.0
    return GpuGroup(group.type, ids, cost, (layout,), held=content, instead=anew)


def _held_choices(content: HeldGpu, candidates: list[Choice], number: int) -> list[Choice]:
    occupants = content.occupants or {}
    return [
        replace(choice, group=number)
        for choice in candidates
        if (choice.model, choice.variant, choice.stage, choice.point) in occupants
    ]
