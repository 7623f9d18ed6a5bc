"""The layouts that a GPU of a fleet may take, as profile names.

A host's cores can be divided in too many ways to list. Listed are only divisions into numbers of cores that some point
uses, as many as the host has room for. Idle cores need no slice, so no plan is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from torchsplit_core.hardware import gpu_type, maximal_multisets, profile_cores
from torchsplit_core.planning.request.fleet import UNPARTITIONED, FleetGpu, Layouts
from torchsplit_core.values import CPU, InputFault, PlanRequest

MAX_DIVISIONS = 10_000
"""Most divisions of a host's cores in a plan; 128 cores in ones, twos, fours and eights have 6,545."""


def allowed_layouts(request: PlanRequest, gpu: FleetGpu) -> Layouts:
    """The layouts given for the GPU, else every maximal legal one; where the plan decides on MIG also the whole GPU.

    Raises InputFault for a host with too many.
    """
    kind = gpu_type(gpu.type)
    if gpu.layouts is None and kind.divided == "cores":
        return core_divisions(gpu.type, cores_in_use(request))
    layouts = maximal_multisets(kind) if gpu.layouts is None else gpu.layouts
    return (*layouts, *UNPARTITIONED) if gpu.either else layouts


def allowed_profiles(request: PlanRequest, gpu: FleetGpu) -> frozenset[str]:
    """The profiles of those layouts, without listing a host's divisions."""
    kind = gpu_type(gpu.type)
    if gpu.layouts is None and kind.divided == "cores":
        return frozenset(f"{size}c" for size in cores_in_use(request) if size <= kind.memory_slices)
    return frozenset(name for layout in allowed_layouts(request, gpu) for name in layout)


def cores_in_use(request: PlanRequest) -> tuple[int, ...]:
    """The numbers of cores that points of the request run on, ascending."""
    places = {
        (point.gpu_type, point.profile) for model in request.models for point in model.allowed_points
    } | {
        (point.gpu_type, point.profile)
        for model in request.models
        if model.llm is not None
        for point in model.llm.points
    }
    core_counts = {profile_cores(profile) for kind, profile in places if kind == CPU}
    return tuple(sorted(count for count in core_counts if count is not None))


@cache
def core_divisions(kind: str, sizes: tuple[int, ...]) -> Layouts:
    """Every maximal way to divide a host's cores into these numbers of cores, as sorted profile names.

    Raises InputFault for more than MAX_DIVISIONS.
    """
    cores = gpu_type(kind).memory_slices
    sizes = tuple(size for size in sizes if size <= cores)
    if not sizes:
        return ()
    layouts: list[tuple[str, ...]] = []
    for counts in _core_fillings(cores, sizes[::-1]):
        if len(layouts) == MAX_DIVISIONS:
            raise InputFault(
                "gpus",
                f"{kind} can be divided in more than {MAX_DIVISIONS:,} ways, since points use "
                f"{', '.join(map(str, sizes))} cores at a time",
                "Offer it layouts, keep points of fewer numbers of cores, or list it as several smaller hosts.",
            )
        names = [f"{size}c" for size, count in zip(sizes[::-1], counts, strict=True) for _ in range(count)]
        layouts.append(tuple(sorted(names)))
    return tuple(layouts)


def _core_fillings(cores: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """How many of each size (descending), with a rest smaller than the smallest size."""
    first, rest = sizes[0], sizes[1:]
    if not rest:
        yield (cores // first,)
        return
    for count in range(cores // first, -1, -1):
        for others in _core_fillings(cores - count * first, rest):
            yield (count, *others)
