"""A problem in which GPUs may stay as they are now, for plans that touch only some of them.

Each group of GPUs that hold the same becomes two: one whose GPUs stay, with the layout and the instances of now, and
one whose GPUs are planned anew. How many are in which is the program's decision (family `held`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from torchsplit_core.planning.problem.build import CandidateLayout, Choice, GpuGroup, Problem
from torchsplit_core.planning.problem.held_gpus import HeldGpu, by_content


def with_held_gpus(problem: Problem, held: Mapping[str, HeldGpu]) -> Problem:
    """The problem with groups split by what their GPUs hold; built with the points in use."""
    groups: list[GpuGroup] = []
    choices: list[Choice] = []
    for number, group in enumerate(problem.groups):
        candidates = [choice for choice in problem.choices if choice.group == number]
        offered = {name for layout in group.layouts for name in layout.usable_counts}
        for content, ids in by_content(group.gpu_ids, held):
            layouts = () if content.is_fixed else group.layouts
            anew = len(groups)
            must_change = bool(content.slices) and content.occupants is None
            groups.append(replace(group, gpu_ids=ids, layouts=layouts, twin_of=None, must_change=must_change))
            if layouts:
                choices += [replace(c, group=anew) for c in candidates if c.profile in offered]
            if content.slices and not must_change:
                choices += _held_choices(content, candidates, len(groups))
                groups.append(_held_group(group, ids, content, anew))
    return replace(problem, groups=tuple(groups), choices=tuple(choices))


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
