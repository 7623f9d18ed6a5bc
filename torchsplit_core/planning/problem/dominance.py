"""Points and layouts that others match or beat, dropped before the solver sees them.

Not to be confused with the dominance of graph nodes: here a thing dominates another when
swapping the other for it never makes a plan worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from torchsplit_core.values import PlanRequest, Point

Item = tuple[int, int, int, Point]
"""Model, variant, stage, point."""


def pareto_points(
    points: Sequence[Point],
    request: PlanRequest,
    capacity: Mapping[tuple[str, str], float],
    *,
    by_latency: bool,
) -> list[Point]:
    """For every slice profile the points that no other point of it matches in all that counts.

    Throughput counts always; latency where the limit can bind (`by_latency`); memory where
    co-tenants share it or where its excess costs a penalty.
    """
    kept: list[Point] = []
    by_slice: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        by_slice.setdefault((point.gpu_type, point.profile), []).append(point)
    for key, same in by_slice.items():
        size = capacity[key]
        # Of equal points the quicker, then the smaller one stands first, so it is the one kept.
        order = sorted(
            same,
            key=lambda p: (-p.throughput_rps, p.latency_ms, p.memory_gib or 0.0, p.batch_size, p.processes),
        )
        front: list[Point] = []
        for point in order:
            if not any(_covers(other, size, point, size, request, by_latency) for other in front):
                front.append(point)
        kept += front
    return kept


def drop_dominated_layouts(
    layouts: Sequence[tuple[str, ...]],
    useful: Mapping[str, Sequence[Item]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[tuple[int, int]],
) -> list[tuple[str, ...]]:
    """Leave out layouts whose slices can all be exchanged for slices at least as good in another.

    `by_latency` holds the (model, variant) pairs whose latency limit can bind.
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
    by_latency: Set[tuple[int, int]],
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
    good: Point, good_size: float, worse: Point, worse_size: float, request: PlanRequest, by_latency: bool
) -> bool:
    if good.throughput_rps < worse.throughput_rps:
        return False
    if by_latency and good.latency_ms > worse.latency_ms:
        return False
    good_memory, worse_memory = good.memory_gib or 0.0, worse.memory_gib or 0.0
    if request.sharing == "fractional" and good_memory > worse_memory:
        return False
    return max(0.0, good_memory - good_size) <= max(0.0, worse_memory - worse_size)


def _profile_covers(
    good: str,
    worse: str,
    useful: Mapping[str, Sequence[Item]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[tuple[int, int]],
) -> bool:
    """Whether every use of a `worse` slice could move to a `good` one."""
    if request.sharing == "fractional" and sizes[good] < sizes[worse]:
        return False
    there: dict[tuple[int, int, int], list[Point]] = {}
    for model, variant, stage, point in useful.get(good, ()):
        there.setdefault((model, variant, stage), []).append(point)
    return all(
        any(
            _covers(other, sizes[good], point, sizes[worse], request, (model, variant) in by_latency)
            for other in there.get((model, variant, stage), ())
        )
        for model, variant, stage, point in useful.get(worse, ())
    )


def _matches(layout: Sequence[str], other: Sequence[str], better: Mapping[tuple[str, str], bool]) -> bool:
    """Whether each slice of `layout` finds a slice of its own in `other`, which is another layout."""
    if len(layout) > len(other) or Counter(layout) == Counter(other):
        return False
    return match_slices(layout, other, better) is not None
