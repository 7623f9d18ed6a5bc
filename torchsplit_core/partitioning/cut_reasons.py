"""Why a cut is where it is: the values that cross it, and its place among the model's regions."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.graph import RegionTree
from torchsplit_core.partitioning.provider import PartitionProvider
from torchsplit_core.values import PartitionCandidate


@dataclass(frozen=True, slots=True)
class CrossingValue:
    """A value that is read after a cut: its bytes at the traced batch, and whether it is side-band."""

    id: str
    module: str
    output_bytes: int
    sideband: bool


@dataclass(frozen=True, slots=True)
class CutReason:
    """One cut of a candidate, after its first `after` stages.

    `crossing`: the values read after it, largest first. `cut_point`: the only value that crosses besides the side-band,
    if the cut is at a cut point of the whole model. Otherwise `inside` is the smallest single-entry single-exit region
    (its index in the region tree) within which all crossing values are read: the cut runs through it, with (start, end)
    as its ends.
    """

    after: int
    crossing: tuple[CrossingValue, ...]
    cut_point: str | None
    inside: int | None
    ends: tuple[str, str] | None


def cut_reasons(provider: PartitionProvider, candidate: PartitionCandidate) -> tuple[CutReason, ...]:
    """The reason of each cut of a candidate, in pipeline order."""
    prepared, tree, by_id = provider.prepared, provider.regions, provider.graph.by_id
    stage_of = {name: i for i, stage in enumerate(candidate.stages) for name in stage}
    reasons: list[CutReason] = []
    for after in range(1, len(candidate.stages)):
        crossing: list[CrossingValue] = []
        reading: set[str] = set()
        for name, stage in stage_of.items():
            behind = [user for user in provider.graph.users[name] if stage_of.get(user, -1) >= after]
            if stage >= after or not behind:
                continue
            sideband = prepared.unit_of.get(name) in prepared.sideband
            node = by_id[name]
            crossing.append(CrossingValue(name, node.module, node.output_bytes, sideband))
            if not sideband:
                reading.update(prepared.unit_of[user] for user in behind if user in prepared.unit_of)
        crossing.sort(key=lambda value: (-value.output_bytes, value.id))
        main = {prepared.unit_of.get(value.id) for value in crossing if not value.sideband}
        point = main.pop() if len(main) == 1 else None
        if point is not None and point in tree.cut_points:
            reasons.append(CutReason(after, tuple(crossing), point, None, None))
        else:
            inside = smallest_region(tree, reading)
            region = tree.regions[inside]
            reasons.append(CutReason(after, tuple(crossing), None, inside, (region.start, region.end)))
    return tuple(reasons)


def smallest_region(tree: RegionTree, units: set[str]) -> int:
    """The index in the tree of the smallest region with all of these units; the whole graph for none."""
    positions = [tree.position[unit] for unit in units if unit in tree.position]
    if not positions:
        return 0
    first, last = min(positions), max(positions)
    index: int | None = tree.innermost[first]
    while index is not None:
        region = tree.regions[index]
        if region.first <= first and last < region.first + region.count:
            return index
        index = region.parent
    return 0
