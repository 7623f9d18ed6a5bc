"""What is wrong with slices that a person put on a GPU: every fault, each with its remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torchsplit_core.hardware import gpu_type, plain_profiles
from torchsplit_core.planning.fleet import FleetGpu
from torchsplit_core.planning.hand_values import HandFault, place


def layout_faults(given: FleetGpu, slices: Sequence[tuple[str, int]]) -> Iterator[HandFault]:
    """Faults of (profile, start) pairs against the catalogue and the layouts this GPU is offered."""
    gpu = gpu_type(given.type)
    known = {profile.name: profile for profile in gpu.profiles}
    plain = [profile.name for profile in plain_profiles(gpu)]
    placed = []
    for name, start in slices:
        where = place(name, start)
        if name not in known:
            yield HandFault(
                given.id,
                where,
                None,
                name,
                f"{gpu.name} has no such profile",
                f"Known are {', '.join(plain)}.",
            )
            continue
        if given.layouts is None and name not in plain:
            yield HandFault(
                given.id,
                where,
                None,
                name,
                "only plain profiles with a known memory are used unless the GPU is offered others",
                f"Use one of {', '.join(plain)}, or offer the GPU a layout with it.",
            )
        starts = known[name].placement_starts
        if start not in starts:
            yield HandFault(
                given.id,
                where,
                None,
                f"slot {start}",
                f"{name} cannot start there",
                f"It may start at {_either(starts)}.",
            )
        placed.append((start, known[name]))
    placed.sort(key=lambda item: (item[0], item[1].name))
    for number, (start, profile) in enumerate(placed):
        end = start + profile.memory_slices
        for other_start, other in placed[number + 1 :]:
            if other_start < end:
                last = min(end, other_start + other.memory_slices) - 1
                slots = f"slot {other_start}" if last == other_start else f"slots {other_start} to {last}"
                yield HandFault(
                    given.id,
                    place(other.name, other_start),
                    None,
                    slots,
                    f"it overlaps {place(profile.name, start)}",
                    "Move or drop one of the two.",
                )
    for name, count in Counter(profile.name for _, profile in placed).items():
        if count > known[name].max_instances:
            yield HandFault(
                given.id,
                None,
                None,
                f"{count} × {name}",
                f"{gpu.name} has at most {known[name].max_instances} of it",
                f"Drop {count - known[name].max_instances}.",
            )
    compute = sum(profile.compute_slices for _, profile in placed)
    if compute > gpu.compute_slices:
        yield HandFault(
            given.id,
            None,
            None,
            f"{compute} compute slices",
            f"{gpu.name} has {gpu.compute_slices}",
            "Drop a slice or take a smaller one.",
        )
    names = tuple(sorted(name for name, _ in slices))
    if given.layouts is not None and names not in given.layouts and set(names) <= set(known):
        offers = "; ".join(" + ".join(layout) for layout in given.layouts)
        yield HandFault(
            given.id,
            None,
            None,
            " + ".join(names),
            "it is one of the layouts offered to this GPU, idle slices included",
            f"Offered are {offers}.",
        )


def _either(starts: Sequence[int]) -> str:
    if len(starts) == 1:
        return str(starts[0])
    return f"{', '.join(map(str, starts[:-1]))} or {starts[-1]}"
