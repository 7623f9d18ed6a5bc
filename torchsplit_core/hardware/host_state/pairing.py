"""One GPU of a plan on one GPU of a host: at which starts its slices leave the most as it is.

Whether slices fit together depends on their starts only through the memory slots they take, since their profiles are
fixed. So a dynamic program over the slots, from the left, with the slices that are not placed yet, is exact.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from torchsplit_core.hardware import gpu_type
from torchsplit_core.hardware.host_state.validity import member_key
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import GpuType, PlacedProfile, PlannedSlice, StateInstance

Value = tuple[int, int, int]
"""(−evicted instances of others, untouched tenants, kept instances): larger is better."""

_Class = tuple[str, tuple[tuple[Hashable, int], ...]]
"""Slices that are alike to a host: their profile, and how many of which of its tenants they have."""
_Spot = tuple[str, int, tuple[tuple[Hashable, int], ...] | None]
"""An instance of a host: profile, start and tenants by number; None: of somebody else."""


@dataclass(frozen=True, slots=True)
class GpuPairing:
    """The best starts of a target's slices on a host: `starts` in the order of the slices."""

    evicted: int
    untouched: int
    kept_instances: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of a plan's GPU, or instances of a host's: profile, start and how many of which tenants; None: of somebody
    else. `keys`: all tenants by profile."""

    items: tuple[tuple[str, int, Counter[Hashable] | None], ...]
    keys: Mapping[str, frozenset[Hashable]]


def slices_of(items: Sequence[PlannedSlice | StateInstance]) -> Slices:
    """Made once for each GPU, since each is paired with many."""
    listed, keys = [], defaultdict[str, set[Hashable]](set)
    for item in items:
        tenants = item.tenants
        if isinstance(item, StateInstance):
            tenants = None if item.foreign else item.planned_tenants
        counts = None if tenants is None else Counter(map(member_key, tenants))
        listed.append((item.profile, item.start, counts))
        keys[item.profile].update(counts or ())
    return Slices(tuple(listed), {profile: frozenset(names) for profile, names in keys.items()})


def pair_gpus(type_name: str, target: Slices, host: Slices, *, evict: bool) -> GpuPairing | None:
    """The best pairing of a plan's GPU and a host's of one type; None where instances of others leave no room.

    `evict`: those of others give way where there is no other room.
    """
    # Only a tenant that both have under the same profile can stay: to the pair, all others are alike.
    common = {profile: names & host.keys.get(profile, frozenset()) for profile, names in target.keys.items()}
    classes = [(profile, _shared(counts, common[profile])) for profile, _, counts in target.items]
    spots = tuple(
        (profile, start, None if counts is None else _shared(counts, common.get(profile, frozenset())))
        for profile, start, counts in host.items
        if counts is None or profile in common
    )
    counted = Counter(classes)
    result = _best_starts(type_name, tuple(sorted(counted.items(), key=repr)), spots, evict)
    if result is None:
        return None
    (evicted, untouched, kept_instances), starts_of = result
    waiting = {key: list(starts) for key, starts in starts_of}
    return GpuPairing(-evicted, untouched, kept_instances, tuple(waiting[key].pop(0) for key in classes))


def _shared(counts: Counter[Hashable] | None, names: frozenset[Hashable]) -> tuple[tuple[Hashable, int], ...]:
    if not counts or not names:
        return ()
    return tuple(sorted(((key, count) for key, count in counts.items() if key in names), key=repr))


@cache
def _best_starts(
    type_name: str, classes: tuple[tuple[_Class, int], ...], spots: tuple[_Spot, ...], evict: bool
) -> tuple[Value, tuple[tuple[_Class, tuple[int, ...]], ...]] | None:
    """The best value and the starts of each class; None where they do not fit."""
    kind = gpu_type(type_name)
    best = _SlotProgram(kind, classes, spots, evict).solve()
    if best is None:
        return None
    value, placed = best
    ends = [(start, start + kind.profile(name).memory_slices) for (name, _), start in placed]
    remaining = [
        PlacedProfile(profile, start)
        for profile, start, counts in spots
        if counts is None
        and not any(
            first < start + kind.profile(profile).memory_slices and start < last for first, last in ends
        )
    ]
    layout = [PlacedProfile(name, start) for (name, _), start in placed]
    if remaining and layout_fault(kind, [*layout, *remaining]) is not None:
        # Compute slices or numbers of instances, which no start changes: together they cannot exist.
        if not evict:
            return None
        value = (-sum(counts is None for _, _, counts in spots), *value[1:])
    starts: dict[_Class, list[int]] = {}
    for key, start in placed:
        starts.setdefault(key, []).append(start)
    return value, tuple((key, tuple(sorted(items))) for key, items in starts.items())


class _SlotProgram:
    """Places classes of slices from the left; the state is the first free slot and what is left to place."""

    def __init__(
        self, kind: GpuType, classes: tuple[tuple[_Class, int], ...], spots: tuple[_Spot, ...], evict: bool
    ) -> None:
        self.classes, self.evict = classes, evict
        self.sizes = [kind.profile(profile).memory_slices for (profile, _), _ in classes]
        self.foreign = [
            (start, start + kind.profile(profile).memory_slices)
            for profile, start, counts in spots
            if counts is None
        ]
        ours = {(profile, start): dict(counts) for profile, start, counts in spots if counts is not None}
        self.gains = [
            {
                start: (1, sum(min(count, counts.get(key, 0)) for key, count in wanted))
                for (name, start), counts in ours.items()
                if name == profile
            }
            for (profile, wanted), _ in classes
        ]
        self.slots, self.kind = kind.memory_slices, kind
        self.memo: dict[tuple[int, tuple[int, ...]], tuple[Value, int, int] | None] = {}

    def solve(self) -> tuple[Value, list[tuple[_Class, int]]] | None:
        """The best value and the class and start of each slice."""
        left = tuple(count for _, count in self.classes)
        if self._value(0, left) is None:
            return None
        placed, first, total = [], 0, self._value(0, left)
        while any(left):
            step = self.memo[first, left]
            assert step is not None
            _, index, start = step
            placed.append((self.classes[index][0], start))
            first, left = start + self.sizes[index], _without(left, index)
        assert total is not None
        return total, placed

    def _value(self, first: int, left: tuple[int, ...]) -> Value | None:
        """The best of the slices `left` at slots from `first` on; None where they do not fit."""
        if not any(left):
            return (0, 0, 0)
        if (first, left) not in self.memo:
            self.memo[first, left] = self._best_step(first, left)
        step = self.memo[first, left]
        return None if step is None else step[0]

    def _best_step(self, first: int, left: tuple[int, ...]) -> tuple[Value, int, int] | None:
        if sum(size * count for size, count in zip(self.sizes, left, strict=True)) > self.slots - first:
            return None
        best: tuple[Value, int, int] | None = None
        for index, count in enumerate(left):
            for start in self._starts(index, first) if count else ():
                evicted = self._evicted(first, start, start + self.sizes[index])
                if evicted and not self.evict:
                    continue
                rest = self._value(start + self.sizes[index], _without(left, index))
                if rest is None:
                    continue
                kept_instances, untouched = self.gains[index].get(start, (0, 0))
                value = (rest[0] - evicted, rest[1] + untouched, rest[2] + kept_instances)
                if best is None or value > best[0]:
                    best = (value, index, start)
        return best

    def _starts(self, index: int, first: int) -> list[int]:
        """Where the next slice may start. Cores are interchangeable: there a slice stands at an instance that can be
        kept, or as far left as it goes, since moving it left takes nothing from anyone."""
        profile, size = self.classes[index][0][0], self.sizes[index]
        if self.kind.divided != "cores":
            return [start for start in self.kind.profile(profile).placement_starts if start >= first]
        free = {first, *(end for _, end in self.foreign if end >= first)} | set(self.gains[index])
        return sorted(start for start in free if first <= start <= self.slots - size)

    def _evicted(self, first: int, start: int, end: int) -> int:
        """Instances of others that a slice from `start` to `end` meets first: what stands to its left ends at `first`,
        so it met those that begin before."""
        return sum(first <= low < end and start < high for low, high in self.foreign)


def _without(left: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*left[:index], left[index] - 1, *left[index + 1 :])
