"""Moves in a manual plan: which slices are possible at a place of a GPU, and the GPUs after a change there.

A place is a slice or a free run of memory slots, named by its first slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from torchsplit_core.hardware import gpu_type, plain_profiles
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.planning.manual.values import ManualGpu, ManualSlice
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import WHOLE_GPU, PlacedProfile, PlanRequest, point_type


def slice_at(gpu: ManualGpu, start: int) -> ManualSlice | None:
    """The slice that begins at this memory slot."""
    return next((item for item in gpu.slices if item.start == start), None)


def placements_at(fleet_gpu: FleetGpu, gpu: ManualGpu, start: int) -> tuple[tuple[str, int], ...]:
    """Every (profile, first slot) that may replace the slice, or fill the gap, with slot `start`. Largest first.

    It takes at least one slot of the place and is legal beside all other slices of the GPU; if the GPU has allowed
    layouts, all its slices together are part of one.
    """
    kind = gpu_type(fleet_gpu.type)
    known = kind.profiles
    if fleet_gpu.can_be_whole and kind.whole is not None:
        known = (kind.whole,) if fleet_gpu.whole else (*kind.profiles, kind.whole)
    sizes = {profile.name: profile.memory_slices for profile in known}
    old = slice_at(gpu, start)
    others = [PlacedProfile(item.profile, item.start) for item in gpu.slices if item is not old]
    # A slice of an unknown profile is reported as a fault and covers its first slot only.
    covered = {slot for item in others for slot in range(item.start, item.start + sizes.get(item.profile, 1))}
    if old is not None:
        slots = set(range(start, start + sizes.get(old.profile, 1)))
    else:
        slots = set(_gap(kind.memory_slices, covered, start))
    names = {profile.name for profile in plain_profiles(kind)}
    if fleet_gpu.layouts is not None:
        names = {name for layout in fleet_gpu.layouts for name in layout}
    if fleet_gpu.either:
        names.add(WHOLE_GPU)
    placements = [
        (profile.name, first)
        for profile in known
        if profile.name in names
        for first in profile.placement_starts
        if slots & set(range(first, first + profile.memory_slices))
        and layout_fault(kind, (*others, PlacedProfile(profile.name, first))) is None
        and _is_allowed(fleet_gpu, [*(item.profile for item in others), profile.name])
    ]
    return tuple(sorted(placements, key=lambda choice: (-sizes[choice[0]], choice[0], choice[1])))


def models_with_points(request: PlanRequest, gpu: str, profile: str) -> tuple[str, ...]:
    """The models with a point on this GPU type and profile, in the order of the request."""
    return tuple(
        model.name
        for model in request.models
        if any(
            point.gpu_type == point_type(gpu) and point.profile == profile for point in model.allowed_points
        )
    )


def replace_slice(
    gpus: Sequence[ManualGpu], ids: Collection[str], start: int, new: ManualSlice | None
) -> tuple[ManualGpu, ...]:
    """The GPUs with the slice at `start` replaced by `new` (None: removed) on each of `ids`.

    A GPU of `ids` that is missing is added at the end.
    """
    known = {gpu.id for gpu in gpus}
    all_gpus = (*gpus, *(ManualGpu(name) for name in ids if name not in known))
    return tuple(_replace_on_gpu(gpu, start, new) if gpu.id in ids else gpu for gpu in all_gpus)


def _replace_on_gpu(gpu: ManualGpu, start: int, new: ManualSlice | None) -> ManualGpu:
    slices = [item for item in gpu.slices if item.start != start]
    if new is not None:
        slices.append(new)
    return replace(gpu, slices=tuple(sorted(slices, key=lambda item: item.start)))


def _gap(slots: int, covered: Collection[int], start: int) -> range:
    first = last = start
    while first > 0 and first - 1 not in covered:
        first -= 1
    while last + 1 < slots and last + 1 not in covered:
        last += 1
    return range(first, last + 1)


def _is_allowed(fleet_gpu: FleetGpu, profiles: Sequence[str]) -> bool:
    if fleet_gpu.layouts is None:
        return True
    wanted = Counter(profiles)
    if fleet_gpu.either and wanted == {WHOLE_GPU: 1}:
        return True
    return any(wanted <= Counter(layout) for layout in fleet_gpu.layouts)
