"""Drops dominated points and layouts before the solver sees them.

Unlike dominance of graph nodes: here a point or layout dominates another if replacing the other by it never makes a
plan worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from torchsplit_core.planning.problem.effective_rate import EffectivePoint
from torchsplit_core.values import PlanRequest

CasePoint = tuple[int, int, EffectivePoint]
"""Case, stage, point."""


def pareto_points(
    points: Sequence[EffectivePoint],
    request: PlanRequest,
    capacity: Mapping[tuple[str, str], float],
    *,
    by_latency: bool,
) -> list[EffectivePoint]:
    """For every slice profile the points that no other point of it matches in all that counts.

    Throughput always counts, and what the link allows an instance; latency if the limit can bind (`by_latency`); memory
    if co-tenants share it or its excess costs a penalty.
    """
    undominated: list[EffectivePoint] = []
    by_slice: dict[tuple[str, str, int], list[EffectivePoint]] = {}
    for effective in points:
        point = effective.point
        by_slice.setdefault((point.gpu_type, point.profile, point.tensor_parallel), []).append(effective)
    for (kind, profile, _), slice_points in by_slice.items():
        size = capacity[kind, profile]
        # Of equal points the quicker, then the smaller comes first and is kept.
        order = sorted(slice_points, key=_sort_key)
        front: list[EffectivePoint] = []
        for effective in order:
            if not any(
                _point_dominates(other, size, effective, size, request, by_latency) for other in front
            ):
                front.append(effective)
        undominated += front
    return undominated


def _sort_key(effective: EffectivePoint) -> tuple[float, ...]:
    point = effective.point
    return (
        -effective.rate_rps,
        -effective.cap_rps,
        point.latency_ms,
        point.memory_gib or 0.0,
        point.batch_size,
        point.processes,
    )


def drop_dominated_layouts(
    layouts: Sequence[tuple[str, ...]],
    useful: Mapping[str, Sequence[CasePoint]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[int],
) -> list[tuple[str, ...]]:
    """Drop layouts whose slices can all be exchanged for slices at least as good in another layout.

    `by_latency`: the cases whose latency limit can bind.
    """
    better = profile_dominance(layouts, useful, request, sizes, by_latency)
    order = sorted(layouts, key=lambda layout: (-len(layout), layout))
    alive = dict.fromkeys(order)
    # Of two that match each other, the first is dropped: the one with more distinct profiles, then more memory.
    for layout in sorted(order, key=lambda names: _irregularity(names, sizes), reverse=True):
        for other in alive:
            if other != layout and _layout_dominates(layout, other, better):
                del alive[layout]
                break
    return list(alive)


def _irregularity(layout: Sequence[str], sizes: Mapping[str, float]) -> tuple[int, float]:
    return len(set(layout)), sum(sizes[name] for name in layout)


def profile_dominance(
    layouts: Sequence[tuple[str, ...]],
    useful: Mapping[str, Sequence[CasePoint]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[int],
) -> dict[tuple[str, str], bool]:
    """For each (worse, good) pair of the layouts' profiles, whether a good slice serves every use of a worse one."""
    names = sorted({name for layout in layouts for name in layout})
    return {
        (worse, good): worse == good or _profile_dominates(good, worse, useful, request, sizes, by_latency)
        for worse in names
        for good in names
    }


def match_slices(
    layout: Sequence[str], other: Sequence[str], better: Mapping[tuple[str, str], bool]
) -> tuple[tuple[str, str], ...] | None:
    """Pairs each slice of `layout` with a slice of `other` that is at least as good; None if that is impossible.

    A bipartite matching by augmenting paths over at most eight slices. Pairing common slices first could miss a
    matching.
    """
    match_of: dict[int, int] = {}

    def augment(left: int, tried: set[int]) -> bool:
        for right, name in enumerate(other):
            if right in tried or not better[layout[left], name]:
                continue
            tried.add(right)
            if right not in match_of or augment(match_of[right], tried):
                match_of[right] = left
                return True
        return False

    if not all(augment(left, set()) for left in range(len(layout))):
        return None
    partners = {left: other[right] for right, left in match_of.items()}
    return tuple((name, partners[left]) for left, name in enumerate(layout))


def _point_dominates(
    good: EffectivePoint,
    good_size: float,
    worse: EffectivePoint,
    worse_size: float,
    request: PlanRequest,
    by_latency: bool,
) -> bool:
    if good.rate_rps < worse.rate_rps or good.cap_rps < worse.cap_rps:
        return False
    if by_latency and good.point.latency_ms > worse.point.latency_ms:
        return False
    if request.sharing == "fractional" and _shared_gib(good) > _shared_gib(worse):
        return False
    excess, other = (good.point.memory_gib or 0.0) - good_size, (worse.point.memory_gib or 0.0) - worse_size
    return max(0.0, excess) <= max(0.0, other)


def _shared_gib(effective: EffectivePoint) -> float:
    """GiB that a point takes from co-tenants; infinite if its memory is unknown."""
    return float("inf") if effective.point.memory_gib is None else effective.point.memory_gib


def _profile_dominates(
    good: str,
    worse: str,
    useful: Mapping[str, Sequence[CasePoint]],
    request: PlanRequest,
    sizes: Mapping[str, float],
    by_latency: Set[int],
) -> bool:
    """Whether every use of a `worse` slice could move to a `good` one."""
    if request.sharing == "fractional" and sizes[good] < sizes[worse]:
        return False
    by_stage: dict[tuple[int, int], list[EffectivePoint]] = {}
    for case, stage, effective in useful.get(good, ()):
        by_stage.setdefault((case, stage), []).append(effective)
    return all(
        any(
            _point_dominates(other, sizes[good], effective, sizes[worse], request, case in by_latency)
            for other in by_stage.get((case, stage), ())
        )
        for case, stage, effective in useful.get(worse, ())
    )


def _layout_dominates(
    layout: Sequence[str], other: Sequence[str], better: Mapping[tuple[str, str], bool]
) -> bool:
    """Whether each slice of `layout` can be paired with one of `other`, which is another layout."""
    if len(layout) > len(other) or Counter(layout) == Counter(other):
        return False
    return match_slices(layout, other, better) is not None
