"""Groups of GPUs without MIG that an engine of an LLM takes as one: GPUs of their own beside the real ones.

A group of k GPUs is planned as a GPU with one slice, and `GpuLimit` rows count its k GPUs against those that are there.
Where all GPUs of a type are alike, these are counted over all nodes: groups of k GPUs (k divides the next larger size)
fit into nodes of c₁, c₂, … GPUs if and only if, for every size k, the GPUs of groups of k and more are at most
k · Σ ⌊cⱼ / k⌋. Placing a group in any node that has room for it lowers both sides alike. Otherwise GPUs are counted by
node, and a group says how many it takes of each kind. Where every GPU is told apart, the groups of k are those of
neighbours that begin at a multiple of k, GPUs that are never cut first: other groups of a node are the same but for
swapped GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torchsplit_core.planning.request.fleet import FleetGpu


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """`takes`: GPUs that a GPU in use of a problem's group (its index) counts for; together at most `most`."""

    takes: tuple[tuple[int, int], ...]
    most: int


@dataclass(frozen=True, slots=True)
class GpuClass:
    """Equal GPUs of a fleet, with the index of their group in the problem and the node of each."""

    group: int
    gpu: FleetGpu
    nodes: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """`count` groups at most of `size` GPUs each, which take `parts` (index of a group, GPUs of it)."""

    type: str
    size: int
    count: int
    parts: tuple[tuple[int, int], ...]
    cost: float


def needs_nodes(gpus: Sequence[FleetGpu], sizes: Mapping[str, Sequence[int]], *, by_cost: bool) -> bool:
    """Whether GPUs must be counted by node: those of which a group may be are not all alike."""
    for kind in sizes:
        alike = {
            (gpu.layouts, gpu.either, gpu.cost if by_cost else None)
            for gpu in gpus
            if gpu.type == kind and gpu.can_be_whole
        }
        if len(alike) > 1:
            return True
    return False


def engine_groups(
    classes: Sequence[GpuClass], sizes: Mapping[str, Sequence[int]], first: int, *, told_apart: bool
) -> tuple[list[EngineGroup], list[GpuLimit]]:
    """The groups of these sizes (by GPU type, ascending), with indices from `first` on, and the limits they bring.

    `told_apart`: each class is one GPU.
    """
    groups: list[EngineGroup] = []
    limits: list[GpuLimit] = []
    for kind, wanted in sizes.items():
        members = [item for item in classes if item.gpu.type == kind and item.gpu.can_be_whole]
        if told_apart:
            added = list(_neighbours(kind, members, wanted))
        elif len(members) == 1:
            added = list(_alike(kind, members[0], wanted))
            limits += _packing(members[0], added, wanted, first + len(groups))
        else:
            added = list(_mixed(kind, members, wanted))
        if not added:
            continue
        begin = first + len(groups)
        groups += added
        for item in members:
            taken = [
                (begin + number, count)
                for number, group in enumerate(added)
                for part, count in group.parts
                if part == item.group
            ]
            if taken:
                limits.append(GpuLimit(((item.group, 1), *taken), len(item.nodes)))
    return groups, limits


def _alike(kind: str, members: GpuClass, sizes: Sequence[int]) -> Iterator[EngineGroup]:
    by_node = Counter(members.nodes)
    for size in sizes:
        count = sum(there // size for there in by_node.values())
        if count:
            yield EngineGroup(kind, size, count, ((members.group, size),), size * members.gpu.cost)


def _packing(
    members: GpuClass, groups: Sequence[EngineGroup], sizes: Sequence[int], first: int
) -> Iterator[GpuLimit]:
    """What nodes with a rest of GPUs leave, for every size."""
    by_node = Counter(members.nodes)
    for least in sizes:
        most = least * sum(there // least for there in by_node.values())
        takes = tuple((first + n, group.size) for n, group in enumerate(groups) if group.size >= least)
        if takes and most < len(members.nodes):
            yield GpuLimit(takes, most)


def _mixed(kind: str, classes: Sequence[GpuClass], sizes: Sequence[int]) -> Iterator[EngineGroup]:
    for node in dict.fromkeys(item.nodes[0] for item in classes):
        here_classes = [item for item in classes if item.nodes[0] == node]
        for size in sizes:
            ranges = (range(min(size, len(item.nodes)) + 1) for item in here_classes)
            for counts in product(*ranges):
                if sum(counts) == size:
                    parts = [(item, count) for item, count in zip(here_classes, counts, strict=True) if count]
                    yield EngineGroup(
                        kind,
                        size,
                        min(len(item.nodes) // count for item, count in parts),
                        tuple((item.group, count) for item, count in parts),
                        sum(item.gpu.cost * count for item, count in parts),
                    )


def _neighbours(kind: str, classes: Sequence[GpuClass], sizes: Sequence[int]) -> Iterator[EngineGroup]:
    for node in dict.fromkeys(item.nodes[0] for item in classes):
        row = sorted((item for item in classes if item.nodes[0] == node), key=lambda item: item.gpu.either)
        for size in sizes:
            for begin in range(0, len(row) - size + 1, size):
                block = row[begin : begin + size]
                yield EngineGroup(
                    kind,
                    size,
                    1,
                    tuple((item.group, 1) for item in block),
                    sum(item.gpu.cost for item in block),
                )
