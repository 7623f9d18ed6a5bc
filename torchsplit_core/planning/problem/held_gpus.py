"""What runs now, for a plan that may touch only some GPUs.

A GPU can stay as it is where every tenant runs on a point of the request. GPUs of a group that hold the same are
counted together: so many of them stay, so many are planned anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.planning.request.fleet import UNPARTITIONED, FleetGpu, list_gpus
from torchsplit_core.values import (
    WHOLE_GPU,
    PlannedGpu,
    PlannedSlice,
    PlanRequest,
    Point,
    StateGpu,
    Tenant,
    point_type,
)

Occupant = tuple[int, int, int, Point]
"""Model, variant and stage by number, and the point that it runs on."""


@dataclass(frozen=True, slots=True)
class HeldGpu:
    """What a GPU has now: `slices` with their starts and tenants, and the tenants' number by what they are.

    `occupants` None: something there is no point of the request, so a plan cannot leave it. `is_fixed`: somebody else
    uses it, so a plan has to. `busy_slices`: those with tenants, and what each of these is. `has_strangers`: tenants
    run there that the request does not know, which a plan ends (not counted where somebody else uses the GPU).
    """

    slices: tuple[PlannedSlice, ...]
    occupants: Mapping[Occupant, int] | None
    is_fixed: bool = False
    busy_slices: tuple[tuple[PlannedSlice, tuple[Occupant, ...]], ...] = ()
    has_strangers: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for GPUs that hold the same, at whatever starts."""
        content = Counter((item.profile, _content(item.tenants)) for item in self.slices)
        return frozenset(content.items()), self.occupants is None, self.is_fixed


EMPTY = HeldGpu((), {})


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine that runs now on several GPUs, which stay together or not at all."""

    gpu_ids: tuple[str, ...]
    occupant: Occupant


def held_gpus(request: PlanRequest) -> dict[str, HeldGpu]:
    """By id what each GPU of the request's `current` holds; GPUs it does not name hold nothing."""
    if request.current is None:
        return {}
    occupants, fleet = _occupants(request), {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    return {
        gpu.id: _held(request, gpu, fleet[gpu.id], occupants) for gpu in request.current.gpus if gpu.instances
    }


def running_engines(request: PlanRequest) -> tuple[RunningEngine, ...]:
    """The engines of the request's `current` on several GPUs, where they are points of the request."""
    occupants, fleet = _occupants(request), {gpu.id: gpu for gpu in list_gpus(request.gpus)}
    groups: dict[tuple[str | None, str | None, Occupant], list[str]] = {}
    for gpu in request.current.gpus if request.current is not None else ():
        tenants = [tenant for item in gpu.instances for tenant in item.tenants or ()]
        if len(gpu.instances) == len(tenants) == 1 and isinstance(tenants[0], Tenant) and tenants[0].gpus > 1:
            engine = tenants[0].engine
            assert engine is not None
            occupant = occupants.get((point_type(gpu.type), WHOLE_GPU, *_names(tenants[0])))
            if occupant is not None and fleet[gpu.id].can_be_whole:
                groups.setdefault((engine.group, fleet[gpu.id].node, occupant), []).append(gpu.id)
    return tuple(
        RunningEngine(tuple(ids), occupant)
        for (_, _, occupant), ids in groups.items()
        if len(ids) == occupant[3].tensor_parallel
    )


def points_in_use(held: Mapping[str, HeldGpu], running: Iterable[RunningEngine] = ()) -> frozenset[Point]:
    """The points on which something runs now."""
    alone = (point for gpu in held.values() for *_, point in gpu.occupants or ())
    return frozenset((*alone, *(engine.occupant[3] for engine in running)))


def by_content(ids: Sequence[str], held: Mapping[str, HeldGpu]) -> list[tuple[HeldGpu, tuple[str, ...]]]:
    """GPUs of a group by what they hold, in order of first appearance."""
    contents: dict[Hashable, tuple[HeldGpu, list[str]]] = {}
    for name in ids:
        gpu = held.get(name, EMPTY)
        contents.setdefault(gpu.key, (gpu, []))[1].append(name)
    return [(gpu, tuple(names)) for gpu, names in contents.values()]


def is_as_now(planned: PlannedGpu, held: HeldGpu) -> bool:
    """Whether a planned GPU has the very instances and tenants that it has now."""
    return not held.has_strangers and _drawn(planned.slices) == _drawn(held.slices)


def touched_gpus(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> int:
    """How many GPUs have other instances or tenants than now."""
    held = held_gpus(request)
    return sum(not is_as_now(gpu, held.get(gpu.id, EMPTY)) for gpu in gpus)


def _drawn(slices: Sequence[PlannedSlice]) -> Counter[Hashable]:
    return Counter((item.profile, item.start, _content(item.tenants)) for item in slices)


def _content(tenants: Sequence[Tenant]) -> Hashable:
    return tuple(sorted(map(repr, map(tenant_key, tenants))))


def _held(
    request: PlanRequest, gpu: StateGpu, entry: FleetGpu, occupants: Mapping[Hashable, Occupant]
) -> HeldGpu:
    kind, is_fixed = point_type(gpu.type), any(item.foreign for item in gpu.instances)
    slices, busy, is_known, strangers = [], [], _is_offered(gpu, entry), 0
    for item in gpu.instances:
        pairs = [
            (tenant, occupant)
            for tenant in item.planned_tenants
            if tenant.gpus == 1
            if (occupant := occupants.get((kind, item.profile, *_names(tenant)))) is not None
            and (request.sharing == "fractional" or tenant.share == 1)
        ]
        # A program has one share of a slice for each point, and without shares one tenant.
        is_plain = len({point for _, point in pairs}) == len(pairs)
        is_plain = is_plain and (len(pairs) <= 1 or request.sharing == "fractional")
        is_known = is_known and is_plain and len(pairs) == len(item.planned_tenants)
        # An engine on several GPUs is no occupant of one of them, but its tenant there: see RunningEngine.
        parts = tuple(tenant for tenant in item.planned_tenants if tenant.gpus > 1)
        slices.append(PlannedSlice(item.profile, item.start, (*(tenant for tenant, _ in pairs), *parts)))
        strangers += len(item.planned_tenants) - len(slices[-1].tenants)
        if pairs:
            busy.append((slices[-1], tuple(occupant for _, occupant in pairs)))
    counts = Counter(occupant for _, names in busy for occupant in names)
    # On a GPU of somebody else tenants that the request does not know run on, and count for nothing.
    known = counts if is_known or is_fixed else None
    return HeldGpu(tuple(slices), known, is_fixed, tuple(busy), strangers > 0 and not is_fixed)


def _is_offered(gpu: StateGpu, entry: FleetGpu) -> bool:
    """Whether the request lets the GPU have the layout that it has."""
    names = tuple(sorted(item.profile for item in gpu.instances))
    if names == UNPARTITIONED[0]:
        return entry.can_be_whole
    return names in entry.layouts if entry.layouts is not None else WHOLE_GPU not in names


def _names(tenant: Tenant) -> tuple[str, str, str, int, int, int]:
    return (tenant.model, tenant.variant, tenant.stage, tenant.batch_size, tenant.processes, tenant.gpus)


def _occupants(request: PlanRequest) -> dict[Hashable, Occupant]:
    """Every way to run an instance in the request, by GPU type, profile and the names in a plan."""
    ways: dict[Hashable, Occupant] = {}
    for index, model in enumerate(request.models):
        for number, variant in model.allowed_variants:
            for stage_number, stage in enumerate(variant.stages):
                for point in stage.points:
                    names = (
                        model.name,
                        variant.name,
                        stage.name,
                        point.batch_size,
                        point.processes,
                        point.tensor_parallel,
                    )
                    ways[point.gpu_type, point.profile, *names] = (index, number, stage_number, point)
    return ways
