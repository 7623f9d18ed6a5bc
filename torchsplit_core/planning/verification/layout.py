"""First part of the verification: faults in the slices of a GPU, each with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torchsplit_core.hardware import gpu_type, plain_profiles
from torchsplit_core.planning.request.fleet import FleetGpu
from torchsplit_core.values import (
    WHOLE_GPU,
    GpuType,
    PlanFault,
    PlannedSlice,
    SliceProfile,
    profile_words,
    slice_name,
)
from torchsplit_core.values.errors import quoted, suggestion

Placed = tuple[int, SliceProfile]
"""First memory slot and profile of a slice."""


def layout_faults(fleet_gpu: FleetGpu, slices: Sequence[PlannedSlice]) -> Iterator[PlanFault]:
    """Faults of the slices against the catalogue and the GPU's allowed layouts; ignores tenants."""
    gpu = gpu_type(fleet_gpu.type)
    known = {profile.name: profile for profile in _profiles(fleet_gpu, gpu)}
    for item in slices:
        yield from _profile_faults(fleet_gpu, gpu, item)
    placed = sorted(
        ((item.start, known[item.profile]) for item in slices if item.profile in known),
        key=lambda pair: (pair[0], pair[1].name),
    )
    yield from _overlaps(fleet_gpu, placed)
    yield from _instance_count_faults(fleet_gpu, gpu, placed)
    names = tuple(sorted(item.profile for item in slices))
    is_offered = fleet_gpu.layouts is None or names in fleet_gpu.layouts
    if fleet_gpu.either:
        is_offered = (WHOLE_GPU not in names and is_offered) or names == (WHOLE_GPU,)
    if names and not is_offered and set(names) <= set(known):
        offered = fleet_gpu.layouts or ((WHOLE_GPU,),)
        yield PlanFault(
            fleet_gpu.id,
            None,
            None,
            f"the layout {' + '.join(map(profile_words, names))} is not offered to this GPU",
            "Use one that is, idle slices included: "
            f"{'; '.join(' + '.join(map(profile_words, layout)) for layout in offered)}.",
        )


def _profiles(fleet_gpu: FleetGpu, gpu: GpuType) -> tuple[SliceProfile, ...]:
    """The possible profiles of its slices: the whole GPU if left whole, those of MIG or of its cores, or both."""
    if gpu.whole is None or not fleet_gpu.can_be_whole:
        return gpu.profiles
    return (gpu.whole,) if fleet_gpu.whole else (*gpu.profiles, gpu.whole)


def _profile_faults(fleet_gpu: FleetGpu, gpu: GpuType, item: PlannedSlice) -> Iterator[PlanFault]:
    plain = [profile.name for profile in plain_profiles(gpu)]
    problems = []
    known = _profiles(fleet_gpu, gpu)
    starts = next((candidate.placement_starts for candidate in known if candidate.name == item.profile), None)
    if starts is None and fleet_gpu.whole:
        problem = f"is {profile_words(item.profile)}, and {gpu.name} is left whole"
        problems.append((problem, "Use the whole GPU."))
    elif starts is None:
        problem = f"unknown profile {quoted(profile_words(item.profile))} of {gpu.name}"
        problems.append((problem, suggestion(item.profile, plain, "profiles")))
    elif fleet_gpu.layouts is None and item.profile not in plain and item.profile != WHOLE_GPU:
        problem = f"{item.profile} is used only where the GPU is offered a layout with it"
        problems.append((problem, f"Offer one, or use one of {', '.join(plain)}."))
    if starts is not None and item.start not in starts:
        problem = f"{profile_words(item.profile)} cannot start at slot {item.start}"
        problems.append((problem, f"Start it at {_format_starts(starts)}."))
    for problem, remedy in problems:
        yield PlanFault(fleet_gpu.id, slice_name(item.profile, item.start), None, problem, remedy)


def _overlaps(fleet_gpu: FleetGpu, placed: Sequence[Placed]) -> Iterator[PlanFault]:
    for number, (start, profile) in enumerate(placed):
        end = start + profile.memory_slices
        for other_start, other in placed[number + 1 :]:
            if other_start < end:
                last = min(end, other_start + other.memory_slices) - 1
                slots = f"slot {other_start}" if last == other_start else f"slots {other_start} to {last}"
                yield PlanFault(
                    fleet_gpu.id,
                    slice_name(other.name, other_start),
                    None,
                    f"overlaps {slice_name(profile.name, start)} in {slots}",
                    "Move or drop one of the two.",
                )


def _instance_count_faults(
    fleet_gpu: FleetGpu, gpu: GpuType, placed: Sequence[Placed]
) -> Iterator[PlanFault]:
    for profile, count in Counter(profile for _, profile in placed).items():
        if count > profile.max_instances:
            problem = f"has {count} × {profile_words(profile.name)}, at most {profile.max_instances} fit on {gpu.name}"
            yield PlanFault(fleet_gpu.id, None, None, problem, f"Drop {count - profile.max_instances}.")
    compute = sum(profile.compute_slices for _, profile in placed)
    if compute > gpu.compute_slices:
        problem = f"takes {compute} compute slices, and {gpu.name} has {gpu.compute_slices}"
        yield PlanFault(fleet_gpu.id, None, None, problem, "Drop a slice, or take a smaller one.")


def _format_starts(starts: Sequence[int]) -> str:
    if len(starts) == 1:
        return str(starts[0])
    return f"{', '.join(map(str, starts[:-1]))} or {starts[-1]}"
