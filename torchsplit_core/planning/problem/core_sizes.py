"""Numbers of cores that are worth a slice of a host.

Two instances on 2 cores each mostly serve more than one on 4, so most sizes are dominated: a size is left out if each
of its points could be replaced by instances of a smaller size on the same cores that together serve no less, take no
longer and are on no other node. Any plan with such a slice can be changed to one that is no worse. If co-tenants share
memory, or excess memory has a price, an instance must also take no larger part of its slice's memory: then all tenants
of the slice fit each of the smaller ones and exceed them together by no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from torchsplit_core.hardware import profile_cores
from torchsplit_core.planning.problem.dominance import CasePoint


def undominated_core_sizes(
    useful: Mapping[str, Sequence[CasePoint]], latency_limited: Set[int], *, by_memory: bool
) -> tuple[int, ...]:
    """The numbers of cores, ascending, into which a host is divided.

    `latency_limited`: the cases whose latency limit can bind. `by_memory`: the slices' memory is known, and shared or
    priced.
    """
    by_size = {cores: items for name, items in useful.items() if (cores := profile_cores(name)) is not None}
    sizes: list[int] = []
    for size in sorted(by_size):
        if not any(_dominates(smaller, size, by_size, latency_limited, by_memory) for smaller in sizes):
            sizes.append(size)
    return tuple(sizes)


def _dominates(
    smaller: int,
    size: int,
    by_size: Mapping[int, Sequence[CasePoint]],
    latency_limited: Set[int],
    by_memory: bool,
) -> bool:
    """Whether slices of the smaller size can replace one of `size` for its every use."""
    times = size // smaller
    return all(
        any(
            (case, stage) == (other_case, other_stage)
            and times * other.rate_rps >= effective.rate_rps
            and times * other.cap_rps >= effective.cap_rps
            and (case not in latency_limited or other.point.latency_ms <= effective.point.latency_ms)
            and (other.point.memory_gib is not None or effective.point.memory_gib is None)
            and (
                not by_memory
                or (other.point.memory_gib or 0.0) * size <= (effective.point.memory_gib or 0.0) * smaller
            )
            for other_case, other_stage, other in by_size[smaller]
        )
        for case, stage, effective in by_size[size]
    )
