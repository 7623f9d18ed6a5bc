"""Selects the canonical one of equally good layouts: 7 × 1g.10gb, not 6 × 1g.10gb + 1g.20gb.

A GPU changes to another layout if every tenant gets a slice on which the request has an equivalent point: the same
requests/s with the same interval and batch, in no more time. The canonical layout has the fewest different profiles,
then the least memory, then the fewest slices. Every model keeps its figures (its latency may fall), so no value and no
proof of the plan changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.planning.outcome.figures import planned_models_of
from torchsplit_core.planning.outcome.held_samples import with_samples
from torchsplit_core.planning.outcome.instances import PointKey, point_key, point_table
from torchsplit_core.planning.request.allowed_layouts import allowed_layouts
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.values import (
    WHOLE_GPU,
    GpuType,
    InternalFault,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Point,
)

Points = Mapping[PointKey, Point]
Rank = tuple[int, float, int, tuple[str, ...]]
Layout = tuple[str, ...]


def canonicalised(request: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    """The plan with the canonical layout on every GPU whose tenants lose nothing by it."""
    if not outcome.gpus:
        return outcome
    points = point_table(request)
    known: dict[object, tuple[PlannedSlice, ...]] = {}
    gpus = []
    for fleet_gpu, planned in zip(list_gpus(request.gpus), outcome.gpus, strict=True):
        # Cached, since large fleets repeat a few GPUs.
        key = (fleet_gpu.type, fleet_gpu.layouts, fleet_gpu.either, planned.slices)
        if key not in known:
            known[key] = _canonical_slices(request, fleet_gpu, planned, points)
        gpus.append(replace(planned, slices=known[key]))
    if tuple(gpus) == outcome.gpus:
        return outcome
    return with_samples(request, replace(outcome, gpus=tuple(gpus), models=planned_models_of(request, gpus)))


def canonical_rank(kind: GpuType, layout: Sequence[str]) -> Rank:
    """Sort key, the canonical layout first: number of different profiles, GiB of all slices, slices, names."""
    size = sum(kind.profile(name).memory_gib or 0.0 for name in layout)
    return len(set(layout)), size, len(layout), tuple(sorted(layout))


def _canonical_slices(
    request: PlanRequest, fleet_gpu: FleetGpu, planned: PlannedGpu, points: Points
) -> tuple[PlannedSlice, ...]:
    kind = gpu_type(fleet_gpu.type)
    is_whole = any(item.profile == WHOLE_GPU for item in planned.slices)
    if not planned.used or is_whole or kind.divided != "mig":
        return planned.slices
    busy = [item for item in planned.slices if item.tenants]
    current = tuple(sorted(item.profile for item in planned.slices))
    moves = [_equivalent_slices(kind, item, points) for item in busy]
    cut = (layout for layout in allowed_layouts(request, fleet_gpu) if WHOLE_GPU not in layout)
    for layout in sorted(cut, key=lambda names: canonical_rank(kind, names)):
        if canonical_rank(kind, layout) >= canonical_rank(kind, current):
            break
        positions = _match_slices([list(by_profile) for by_profile in moves], layout)
        if positions is not None:
            return _place_slices(
                kind,
                layout,
                [by_profile[layout[position]] for by_profile, position in zip(moves, positions, strict=True)],
            )
    return planned.slices


def _equivalent_slices(kind: GpuType, item: PlannedSlice, points: Points) -> dict[str, PlannedSlice]:
    """The slice with its tenants on every profile that serves them equally, by profile, its current one first."""
    by_profile = {item.profile: item}
    for profile in kind.profiles:
        tenants = []
        for tenant in item.tenants:
            new = points.get(point_key(kind.name, profile.name, tenant))
            if new is None or not _is_equivalent(new, points[point_key(kind.name, item.profile, tenant)]):
                break
            tenants.append(replace(tenant, memory_gib=new.memory_gib))
        else:
            need = sum(tenant.memory_gib or 0.0 for tenant in tenants)
            known = len(tenants) == 1 or all(tenant.memory_gib is not None for tenant in tenants)
            if profile.memory_gib is not None and need <= profile.memory_gib and known:
                by_profile.setdefault(profile.name, PlannedSlice(profile.name, item.start, tuple(tenants)))
    return by_profile


def _is_equivalent(new: Point, old: Point) -> bool:
    """Whether the new point has the same throughput, interval and basis, and at most the same latency."""
    same = (new.throughput_rps, new.low_rps, new.high_rps, new.basis)
    return (
        same == (old.throughput_rps, old.low_rps, old.high_rps, old.basis)
        and new.latency_ms <= old.latency_ms
    )


def _match_slices(wanted: Sequence[Sequence[str]], layout: Layout) -> list[int] | None:
    """For each slice a position in the layout with one of its `wanted` profiles; None if they do not all fit."""
    slice_at: dict[int, int] = {}

    def augment(index: int, tried: set[int]) -> bool:
        for name in wanted[index]:
            for place, profile in enumerate(layout):
                if profile != name or place in tried:
                    continue
                tried.add(place)
                if place not in slice_at or augment(slice_at[place], tried):
                    slice_at[place] = index
                    return True
        return False

    if not all(augment(slice_number, set()) for slice_number in range(len(wanted))):
        return None
    positions = {slice_number: place for place, slice_number in slice_at.items()}
    return [positions[slice_number] for slice_number in range(len(wanted))]


def _place_slices(kind: GpuType, layout: Layout, busy: Sequence[PlannedSlice]) -> tuple[PlannedSlice, ...]:
    """The slices of a layout at their starts; of equal ones the busy come first, in their previous order."""
    placed = _layout_starts(kind, layout)
    waiting: dict[str, list[PlannedSlice]] = {}
    for item in sorted(busy, key=lambda item: item.start):
        waiting.setdefault(item.profile, []).append(item)
    slices = []
    for profile, start in placed:
        queue = waiting.get(profile)
        slices.append(replace(queue.pop(0), start=start) if queue else PlannedSlice(profile, start))
    if any(waiting.values()):
        raise InternalFault("A standard layout has no room for its tenants.")
    return tuple(slices)


@cache
def _layout_starts(kind: GpuType, layout: Layout) -> tuple[tuple[str, int], ...]:
    placement = place_layout(kind, layout)
    if placement is None:
        raise InternalFault(f"{kind.name} was given a layout that is not legal: {dict(Counter(layout))}.")
    return tuple((item.profile, item.start) for item in placement.placed)
