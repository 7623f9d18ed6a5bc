"""Every legal way to cut a GPU into MIG instances.

A set of placed instances is legal if each has a start that its profile allows, no two
share a memory slot, no profile exceeds its `max_instances`, and the sum of compute slices
does not exceed the GPU's (NVIDIA MIG User Guide, "Supported MIG Profiles"). So 4g + 3g is
legal on a 7-slice GPU, and 3g + 3g leaves no memory slot for a 1g.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate

from torchsplit_core.hardware.catalogue import plain_profiles
from torchsplit_core.values import (
    GpuType,
    InputFault,
    Layout,
    PlacedProfile,
    SliceProfile,
    profile_words,
    quoted,
    suggestion,
)


@cache
def legal_layouts(gpu: GpuType, *, maximal: bool = False, double_memory: bool = True) -> tuple[Layout, ...]:
    """Every legal layout of the plain profiles at concrete starts, including the empty one.

    `maximal` keeps only layouts to which no instance can be added; `double_memory=False`
    omits the 1g with twice the memory. Sorted by their placed instances.
    """
    profiles = [p for p in plain_profiles(gpu) if double_memory or not _is_double_memory(gpu, p)]
    candidates = sorted(
        ((start, p) for p in profiles for start in p.placement_starts),
        key=lambda pair: (pair[0], pair[1].name),
    )
    layouts: list[Layout] = []

    def extend(first: int, chosen: tuple[tuple[int, SliceProfile], ...]) -> None:
        if not maximal or not any(_fits(gpu, chosen, pair) for pair in candidates):
            layouts.append(_layout(gpu, chosen))
        for index in range(first, len(candidates)):
            if _fits(gpu, chosen, candidates[index]):
                extend(index + 1, (*chosen, candidates[index]))

    extend(0, ())
    return tuple(sorted(layouts, key=lambda layout: [(item.start, item.profile) for item in layout.placed]))


@cache
def layout_multisets(gpu: GpuType, *, double_memory: bool = True) -> tuple[tuple[str, ...], ...]:
    """The legal layouts as sorted profile names, ignoring starts."""
    return tuple(sorted({layout.profiles for layout in legal_layouts(gpu, double_memory=double_memory)}))


@cache
def maximal_multisets(gpu: GpuType, *, double_memory: bool = True) -> tuple[tuple[str, ...], ...]:
    """Legal multisets contained in no larger legal one. Planning needs no others: slices may stay unused."""
    counted = [(names, Counter(names)) for names in layout_multisets(gpu, double_memory=double_memory)]
    return tuple(names for names, count in counted if not any(count < larger for _, larger in counted))


def place_layout(gpu: GpuType, profiles: Sequence[str]) -> Layout | None:
    """A layout with concrete starts for these profile names; a repeated name means several instances.

    Deterministic: large instances take the lowest legal starts first.
    None if the set is not legal. Raises InputFault for a name that the GPU does not have.
    """
    wanted = []
    for name in profiles:
        try:
            wanted.append(gpu.profile(name))
        except KeyError:
            known = [profile.name for profile in gpu.profiles]
            raise InputFault(
                f"layout of {gpu.name}",
                f"unknown profile {quoted(name)}",
                suggestion(name, known, "profiles"),
            ) from None
    if (
        sum(profile.memory_slices for profile in wanted) > gpu.memory_slices
        or sum(profile.compute_slices for profile in wanted) > gpu.compute_slices
        or any(wanted.count(profile) > profile.max_instances for profile in wanted)
    ):
        return None
    order = sorted(wanted, key=lambda p: (-p.memory_slices, -p.compute_slices, p.name))
    if gpu.divided == "cores":
        # Cores are interchangeable, so slices placed one after the other fit if there are enough.
        starts = accumulate((profile.memory_slices for profile in order[:-1]), initial=0)
        return _layout(gpu, tuple(zip(starts, order, strict=True))) if order else _layout(gpu, ())

    def search(index: int, chosen: tuple[tuple[int, SliceProfile], ...]) -> Layout | None:
        if index == len(order):
            return _layout(gpu, chosen)
        # Equal instances stand in the order of their starts: no other order fits where this one does not.
        first = chosen[-1][0] + 1 if chosen and chosen[-1][1] is order[index] else 0
        for start in order[index].placement_starts:
            pair = (start, order[index])
            if start >= first and _fits(gpu, chosen, pair):
                layout = search(index + 1, (*chosen, pair))
                if layout is not None:
                    return layout
        return None

    return search(0, ())


def placements_of(gpu: GpuType, profiles: Sequence[str], most: int = 2) -> tuple[Layout, ...]:
    """Up to `most` legal layouts of these instances: with two of them, the starts do not follow from the profiles.

    Raises KeyError for a name that the GPU does not have.
    """
    order = sorted(map(gpu.profile, profiles), key=lambda p: (-p.memory_slices, -p.compute_slices, p.name))
    layouts: list[Layout] = []

    def search(chosen: tuple[tuple[int, SliceProfile], ...]) -> None:
        if len(chosen) == len(order):
            layouts.append(_layout(gpu, chosen))
            return
        profile = order[len(chosen)]
        # Equal instances stand in the order of their starts, so that each layout is met once.
        first = chosen[-1][0] + 1 if chosen and chosen[-1][1] is profile else 0
        for start in profile.placement_starts:
            if len(layouts) < most and start >= first and _fits(gpu, chosen, (start, profile)):
                search((*chosen, (start, profile)))

    if sum(profile.memory_slices for profile in order) <= gpu.memory_slices:
        search(())
    return tuple(layouts)


def layout_fault(gpu: GpuType, placed: Iterable[PlacedProfile]) -> str | None:
    """Why these placed instances are not a legal layout; None if they are.

    An independent check for plans from elsewhere: it shares no step with the search. A GPU left whole has the
    single slice WHOLE_GPU.
    """
    taken: dict[int, str] = {}
    count: Counter[str] = Counter()
    compute = 0
    for item in placed:
        try:
            profile = gpu.profile(item.profile)
        except KeyError:
            return f"{gpu.name} has no profile {profile_words(item.profile)}"
        words = profile_words(item.profile)
        if item.start not in profile.placement_starts:
            return f"{words} cannot start at slot {item.start}"
        for slot in range(item.start, item.start + profile.memory_slices):
            if slot in taken:
                return f"{words} at {item.start} overlaps {taken[slot]} in slot {slot}"
            taken[slot] = f"{words} at {item.start}"
        count[item.profile] += 1
        compute += profile.compute_slices
        if count[item.profile] > profile.max_instances:
            return f"more than {profile.max_instances} instances of {words}"
    if compute > gpu.compute_slices:
        return f"{compute} compute slices on a GPU of {gpu.compute_slices}"
    return None


def creation_order(gpu: GpuType, layout: Layout) -> tuple[PlacedProfile, ...]:
    """The layout's instances in the order in which to create them: large first, then by start.

    A driver that is not given starts may put small instances where a large one has to go;
    in this order, a legal layout always fits.
    """
    return tuple(
        sorted(
            layout.placed,
            key=lambda item: (-gpu.profile(item.profile).memory_slices, item.start, item.profile),
        )
    )


def _fits(gpu: GpuType, chosen: Sequence[tuple[int, SliceProfile]], pair: tuple[int, SliceProfile]) -> bool:
    start, profile = pair
    if start + profile.memory_slices > gpu.memory_slices:
        return False
    if sum(p.compute_slices for _, p in chosen) + profile.compute_slices > gpu.compute_slices:
        return False
    if sum(p is profile for _, p in chosen) >= profile.max_instances:
        return False
    return all(start >= s + p.memory_slices or s >= start + profile.memory_slices for s, p in chosen)


def _is_double_memory(gpu: GpuType, profile: SliceProfile) -> bool:
    ones = [p.memory_slices for p in plain_profiles(gpu) if p.compute_slices == 1]
    return profile.compute_slices == 1 and profile.memory_slices > min(ones)


def _layout(gpu: GpuType, chosen: Sequence[tuple[int, SliceProfile]]) -> Layout:
    ordered = sorted(chosen, key=lambda pair: pair[0])
    return Layout(gpu.name, tuple(PlacedProfile(profile.name, start) for start, profile in ordered))
