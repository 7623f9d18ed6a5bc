"""Points and layouts that others match or beat, dropped before the solver sees them.

Not to be confused with the dominance of graph nodes: here a thing dominates another when
swapping the other for it never makes a plan worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from torchsplit_core.planning.problem.usable import Usable
from torchsplit_core.values import PlanRequest

Item = tuple[int, int, Usable]
"""Case, stage, point."""


def pareto_points(
    points: Sequence[Usable],
    request: PlanRequest,
    capacity: Mapping[tuple[str, str], float],
    *,
    by_latency: bool,
) -> list[Usable]:
    """For every slice profile the points that no other point of it matches in all that counts.

    Throughput counts always, and what the link lets an instance have; latency where the limit can bind
    (`by_latency`); memory where co-tenants share it or where its excess costs a penalty.
    """
    kept: list[Usable] = []
    by_slice: dict[tuple[str, str], list[Usable]] = {}
    for usable in points:
        by_slice.setdefault((usable.point.gpu_type, usable.point.profile), []).append(usable)
    for key, same in by_slice.items():
        size = capacity[key]
        # Of equal points the quicker, then the smaller one stands first, so it is the one kept.
        order = sorted(same, key=_quality)
        front: list[Usable] = []
        for usable in order:
            if not any(_covers(other, size, usable, size, request, by_latency) for other in front):
                front.append(usable)
        kept += front
    return kept


def _quality(usable: Usable) -> tuple[float, ...]:
    point = usable.point
    return (
        -usable.rate_rps,
        -usable.cap_rps,
        point.latency_ms,
        point.memory_gib or 0.0,
        point.batch_size,
        point.processes,
    )


def drop_dominated_layouts(
    layouts: Sequence[tuple[str, ...]],
    useful: Mapping[str, Sequence[Item]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[int],
) -> list[tuple[str, ...]]:
    """Leave out layouts whose slices can all be exchanged for slices at least as good in another.

    `by_latency` holds the cases whose latency limit can bind.
    """
    better = covering_profiles(layouts, useful, request, sizes, by_latency)
    order = sorted(layouts, key=lambda layout: (-len(layout), layout))
    alive = dict.fromkeys(order)
    for layout in order:
        for other in alive:
            if other != layout and _matches(layout, other, better):
                del alive[layout]
                break
    return list(alive)


def covering_profiles(
    layouts: Sequence[tuple[str, ...]],
    useful: Mapping[str, Sequence[Item]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[int],
) -> dict[tuple[str, str], bool]:
    """For each (worse, good) of the layouts' profiles whether a good slice serves every use of a worse one."""
    names = sorted({name for layout in layouts for name in layout})
    return {
        (worse, good): worse == good or _profile_covers(good, worse, useful, request, sizes, by_latency)
        for worse in names
        for good in names
    }


def match_slices(
    layout: Sequence[str], other: Sequence[str], better: Mapping[tuple[str, str], bool]
) -> tuple[tuple[str, str], ...] | None:
    """Each slice of `layout` beside a slice of its own in `other` that is at least as good; None where none is.

    A bipartite matching by augmenting paths over at most eight slices. Slices the two have in
    common are not paired off first: that can miss a matching.
    """
    owner: dict[int, int] = {}

    def seat(left: int, tried: set[int]) -> bool:
        for right, name in enumerate(other):
            if right in tried or not better[layout[left], name]:
                continue
            tried.add(right)
            if right not in owner or seat(owner[right], tried):
                owner[right] = left
                return True
        return False

    if not all(seat(left, set()) for left in range(len(layout))):
        return None
    partners = {left: other[right] for right, left in owner.items()}
    return tuple((name, partners[left]) for left, name in enumerate(layout))


def _covers(
    good: Usable, good_size: float, worse: Usable, worse_size: float, request: PlanRequest, by_latency: bool
) -> bool:
    if good.rate_rps < worse.rate_rps or good.cap_rps < worse.cap_rps:
        return False
    if by_latency and good.point.latency_ms > worse.point.latency_ms:
        return False
    if request.sharing == "fractional" and _shared_gib(good) > _shared_gib(worse):
        return False
    excess, other = (good.point.memory_gib or 0.0) - good_size, (worse.point.memory_gib or 0.0) - worse_size
    return max(0.0, excess) <= max(0.0, other)


def _shared_gib(usable: Usable) -> float:
    """What a point takes from co-tenants: all there is where its memory is unknown."""
    return float("inf") if usable.point.memory_gib is None else usable.point.memory_gib


def _profile_covers(
    good: str,
    worse: str,
    useful: Mapping[str, Sequence[Item]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[int],
) -> bool:
    """Whether every use of a `worse` slice could move to a `good` one."""
    if request.sharing == "fractional" and sizes[good] < sizes[worse]:
        return False
    there: dict[tuple[int, int], list[Usable]] = {}
    for case, stage, usable in useful.get(good, ()):
        there.setdefault((case, stage), []).append(usable)
    return all(
        any(
            _covers(other, sizes[good], usable, sizes[worse], request, case in by_latency)
            for other in there.get((case, stage), ())
        )
        for case, stage, usable in useful.get(worse, ())
    )


def _matches(layout: Sequence[str], other: Sequence[str], better: Mapping[tuple[str, str], bool]) -> bool:
    """Whether each slice of `layout` finds a slice of its own in `other`, which is another layout."""
    if len(layout) > len(other) or Counter(layout) == Counter(other):
        return False
    return match_slices(layout, other, better) is not None
