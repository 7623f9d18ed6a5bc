"""Why not another layout: no use, matched slice by slice by a better one, or tried on one GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.explanation.changes import gpu_classes
from torchsplit_core.planning.explanation.relaxation_bound import (
    RelaxationBound,
    highest_priced_uses,
    layout_value,
)
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.problem.dominance import CasePoint, match_slices, profile_dominance
from torchsplit_core.planning.request.allowed_layouts import allowed_layouts
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import WHOLE_GPU, LayoutReason, PlanOutcome, PlanRequest, point_type

Layout = tuple[str, ...]


@dataclass(frozen=True)
class UnusedLayout:
    """A layout that no GPU of its kind has: the reason, or, if only planning can tell, its value."""

    reason: LayoutReason
    gpu: FleetGpu
    index: int
    layout_value: float

    @property
    def open(self) -> bool:
        """Whether only planning with it decides."""
        return self.reason.reason == "not_examined"


def unused_layouts(
    request: PlanRequest, outcome: PlanOutcome, relaxation: RelaxationBound | None
) -> list[UnusedLayout]:
    """Every candidate layout that no GPU of a kind in use has; those to be tried by decreasing value."""
    unused: list[UnusedLayout] = []
    for gpu, indices in gpu_classes(request):
        working = [index for index in indices if outcome.gpus[index].used]
        # Cores can be divided freely: a host has thousands of layouts with the same reason.
        if working and gpu_type(gpu.type).divided != "cores":
            used = {tuple(sorted(item.profile for item in outcome.gpus[index].slices)) for index in working}
            unused += _class_layouts(request, gpu, working[-1], used, relaxation)
    return sorted(unused, key=lambda item: -item.layout_value)


def _class_layouts(
    request: PlanRequest,
    gpu: FleetGpu,
    index: int,
    used: set[Layout],
    relaxation: RelaxationBound | None,
) -> list[UnusedLayout]:
    offered = allowed_layouts(request, gpu)
    layouts = [tuple(sorted(layout)) for layout in offered if layout != (WHOLE_GPU,)]
    useful, latency_limited, sizes, values = _slice_uses(request, gpu, layouts, relaxation)
    reduced = {layout: tuple(name for name in layout if name in useful) for layout in layouts}
    better = profile_dominance(list(reduced.values()), useful, request, sizes, latency_limited)

    def dominated_by(layout: Layout, others: Sequence[Layout]) -> LayoutReason | None:
        for other in others:
            matching = match_slices(reduced[layout], reduced[other], better) if other != layout else None
            if matching is not None:
                return LayoutReason(gpu.type, gpu.id, layout, "dominated", other, matching)
        return None

    unused = []
    layouts_in_use: list[Layout] = [layout for layout in layouts if layout in used]
    for layout in layouts:
        if layout in used:
            continue
        if not reduced[layout]:
            unused.append(UnusedLayout(LayoutReason(gpu.type, gpu.id, layout, "no_use"), gpu, index, 0.0))
            continue
        # Layouts in use come first: being dominated by one of them is the best reason.
        reason = dominated_by(layout, [*layouts_in_use, *layouts])
        value = values(reduced[layout])
        unused.append(
            UnusedLayout(reason or LayoutReason(gpu.type, gpu.id, layout, "not_examined"), gpu, index, value)
        )
    if gpu.either and (WHOLE_GPU,) not in used:
        # No slices are matched with a GPU without MIG, since it may be one of a group: only planning tells.
        unused.append(UnusedLayout(LayoutReason(gpu.type, gpu.id, (), "not_examined"), gpu, index, math.inf))
    return unused


def _slice_uses(
    request: PlanRequest,
    gpu: FleetGpu,
    layouts: Sequence[Layout],
    relaxation: RelaxationBound | None,
) -> tuple[dict[str, list[CasePoint]], set[int], dict[str, float], Callable[[Layout], float]]:
    """Who can use which slice, and the value of a layout at the relaxation's prices.

    Each layout is offered by a GPU of its own, so that dominance drops none.
    """
    entries = [replace(gpu.entry((layout,)), mig=not gpu.whole) for layout in layouts]
    # The fleet itself is included: a stage of a variant may run nowhere else.
    problem = build_problem(replace(request, gpus=(*entries, *request.gpus)))
    useful: dict[str, list[CasePoint]] = {}
    for choice in problem.choices:
        if problem.groups[choice.group].type == gpu.type:
            item = (choice.case, choice.stage, choice.effective)
            items = useful.setdefault(choice.profile, [])
            if item not in items:
                items.append(item)
    latency_limited = {number for number, case in enumerate(problem.cases) if case.has_latency_levels}
    sizes = {
        name: size for (kind, name), size in problem.capacity_gib.items() if kind == point_type(gpu.type)
    }
    highest_priced: dict[str, float] = {}
    if relaxation is not None:
        for group, uses in zip(problem.groups, highest_priced_uses(problem, relaxation.prices), strict=True):
            if group.type == gpu.type:
                for name, value in uses.items():
                    highest_priced[name] = max(value, highest_priced.get(name, 0.0))
    return (
        useful,
        latency_limited,
        sizes,
        lambda names: layout_value({n: names.count(n) for n in names}, highest_priced),
    )
