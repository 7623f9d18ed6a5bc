"""Why not another layout: without use, matched slice by slice by a better one, or tried on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type, maximal_multisets
from torchsplit_core.planning.explanation.changes import buckets
from torchsplit_core.planning.explanation.relaxation_bound import (
    RelaxationBound,
    highest_priced_uses,
    layout_value,
)
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.planning.problem.dominance import Item, covering_profiles, match_slices
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import FleetEntry, LayoutReason, PlanOutcome, PlanRequest

Layout = tuple[str, ...]


@dataclass(frozen=True)
class Unused:
    """A layout that no GPU of its kind has: a reason that needs no planning, or the worth by which to try it."""

    reason: LayoutReason
    gpu: FleetGpu
    index: int
    layout_value: float

    @property
    def open(self) -> bool:
        """Whether only planning with it can tell."""
        return self.reason.reason == "not_examined"


def unused_layouts(
    request: PlanRequest, outcome: PlanOutcome, relaxation: RelaxationBound | None
) -> list[Unused]:
    """Every candidate layout that no GPU of a kind in use has; those to be tried by falling worth."""
    found: list[Unused] = []
    for gpu, indices in buckets(request):
        working = [index for index in indices if outcome.gpus[index].used]
        if working:
            used = {tuple(sorted(item.profile for item in outcome.gpus[index].slices)) for index in working}
            found += _of_bucket(request, gpu, working[-1], used, relaxation)
    return sorted(found, key=lambda item: -item.layout_value)


def _of_bucket(
    request: PlanRequest,
    gpu: FleetGpu,
    index: int,
    used: set[Layout],
    relaxation: RelaxationBound | None,
) -> list[Unused]:
    offered = maximal_multisets(gpu_type(gpu.type)) if gpu.layouts is None else gpu.layouts
    layouts = [tuple(sorted(layout)) for layout in offered]
    useful, timed, sizes, values = _uses(request, gpu, layouts, relaxation)
    reduced = {layout: tuple(name for name in layout if name in useful) for layout in layouts}
    better = covering_profiles(list(reduced.values()), useful, request, sizes, timed)

    def beaten(layout: Layout, others: Sequence[Layout]) -> LayoutReason | None:
        for other in others:
            matching = match_slices(reduced[layout], reduced[other], better) if other != layout else None
            if matching is not None:
                return LayoutReason(gpu.type, gpu.id, layout, "dominated", other, matching)
        return None

    found = []
    standing: list[Layout] = [layout for layout in layouts if layout in used]
    for layout in layouts:
        if layout in used:
            continue
        if not reduced[layout]:
            found.append(Unused(LayoutReason(gpu.type, gpu.id, layout, "no_use"), gpu, index, 0.0))
            continue
        # The layouts in use come first: that one of them beats it says the most.
        reason = beaten(layout, [*standing, *layouts])
        value = values(reduced[layout])
        found.append(
            Unused(reason or LayoutReason(gpu.type, gpu.id, layout, "not_examined"), gpu, index, value)
        )
    return found


def _uses(
    request: PlanRequest,
    gpu: FleetGpu,
    layouts: Sequence[Layout],
    relaxation: RelaxationBound | None,
) -> tuple[dict[str, list[Item]], set[int], dict[str, float], Callable[[Layout], float]]:
    """Who can use which slice, and what a layout is worth at the relaxation's prices.

    Each layout is offered by a GPU of its own, so that none is dropped for another.
    """
    entries = [FleetEntry(gpu.type, layouts=(layout,), cost=gpu.cost) for layout in layouts]
    # The fleet itself stands beside them: a stage of a variant may run nowhere else.
    problem = build_problem(replace(request, gpus=(*entries, *request.gpus)))
    useful: dict[str, list[Item]] = {}
    for choice in problem.choices:
        if problem.groups[choice.group].type == gpu.type:
            item = (choice.case, choice.stage, choice.usable)
            here = useful.setdefault(choice.profile, [])
            if item not in here:
                here.append(item)
    timed = {number for number, case in enumerate(problem.cases) if case.levels}
    sizes = {name: size for (kind, name), size in problem.capacity_gib.items() if kind == gpu.type}
    highest_priced: dict[str, float] = {}
    if relaxation is not None:
        for group, uses in zip(problem.groups, highest_priced_uses(problem, relaxation.prices), strict=True):
            if group.type == gpu.type:
                for name, value in uses.items():
                    highest_priced[name] = max(value, highest_priced.get(name, 0.0))
    return (
        useful,
        timed,
        sizes,
        lambda names: layout_value({n: names.count(n) for n in names}, highest_priced),
    )
