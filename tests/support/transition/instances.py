"""Random states and plans, and a reckoning by trying everything."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations

from torchsplit_core.hardware import gpu_type, legal_layouts
from torchsplit_core.hardware.host_state.validity import tenant_key
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.values import (
    ForeignTenant,
    GpuType,
    HostState,
    ObjectiveValue,
    PlacedProfile,
    PlannedGpu,
    PlannedModel,
    PlannedSlice,
    PlanOutcome,
    PlanStatistics,
    StateGpu,
    StateInstance,
    Tenant,
)


def tenant(model: str, share: float = 1.0, batch: int = 1, rate: float = 10.0) -> Tenant:
    return Tenant(model, "whole", "whole", share, batch, 1, rate * share, 1.0)


def plan_of(gpus: Sequence[PlannedGpu]) -> PlanOutcome:
    rates: Counter[str] = Counter()
    for gpu in gpus:
        for item in gpu.slices:
            for entry in item.tenants:
                rates[entry.model] += entry.throughput_rps  # type: ignore[assignment]
    models = tuple(PlannedModel(name, "whole", rate, rate, 1.0) for name, rate in sorted(rates.items()))
    statistics = PlanStatistics(0.0, 0.0, 0.0, "none")
    objective = ObjectiveValue("leximin", 1.0)
    return PlanOutcome("0" * 64, "optimal", objective, tuple(gpus), models, statistics)


def random_slices(
    draw: random.Random, type_name: str, models: Sequence[str], *, shared: bool, free: float = 0.15
) -> tuple[PlannedSlice, ...]:
    layout = draw.choice(legal_layouts(gpu_type(type_name)))
    slices = []
    for item in layout.placed:
        if draw.random() < free:
            tenants: tuple[Tenant, ...] = ()
        elif shared and draw.random() < 0.5:
            tenants = tuple(tenant(draw.choice(models), 0.5) for _ in range(draw.choice((1, 2))))
        else:
            tenants = (tenant(draw.choice(models), batch=draw.choice((1, 2))),)
        slices.append(PlannedSlice(item.profile, item.start, tenants))
    return tuple(slices)


def random_case(
    seed: int, *, foreign: float = 0.1, types: Sequence[str] = ("A30-24GB", "A100-80GB")
) -> tuple[PlanOutcome, HostState]:
    """Up to three GPUs of a state, a plan on at most as many of each type, part of it taken from the state."""
    draw = random.Random(seed)
    models = ["a", "b", "c"]
    shared = draw.random() < 0.5
    hosts, targets = [], []
    for index in range(draw.choice((1, 2, 3))):
        kind = draw.choice(types)
        slices = random_slices(draw, kind, models, shared=shared) if draw.random() < 0.8 else ()
        instances = tuple(
            StateInstance(
                item.profile,
                item.start,
                None,
                draw.choice((None, (ForeignTenant("somebody"),)))
                if draw.random() < foreign
                else item.tenants,
            )
            for item in slices
        )
        hosts.append(StateGpu(f"h/gpu{index}", kind, None, None, instances))
        if draw.random() < 0.8:
            planned = random_slices(draw, kind, models, shared=shared)
            if draw.random() < 0.4:
                planned = (
                    tuple(
                        PlannedSlice(i.profile, i.start, i.planned_tenants)
                        for i in instances
                        if draw.random() < 0.8
                    )
                    or planned
                )
            if planned:
                targets.append(PlannedGpu(f"p/gpu{index}", kind, True, planned))
    if not targets:
        return random_case(seed + 1_000_003, foreign=foreign, types=types)
    draw.shuffle(targets)
    return plan_of(targets), HostState(tuple(hosts))


def best_counts(plan: PlanOutcome, state: HostState) -> tuple[int, int, int] | None:
    """Most untouched tenants, then most kept instances, then fewest touched GPUs, by trying every assignment of GPUs
    and every start of every slice; None where none is possible."""
    targets = [gpu for gpu in plan.gpus if gpu.slices]
    values = {
        (target.id, host.id): list(_pair_values(target, host))
        for target in targets
        for host in state.gpus
        if target.type == host.type
    }
    best = None
    for hosts in permutations(state.gpus, len(targets)):
        options = [values.get((target.id, host.id), []) for target, host in zip(targets, hosts, strict=True)]
        if not all(options):
            continue
        unused = [gpu for gpu in state.gpus if gpu not in hosts]
        cleared = sum(any(item.foreign is None for item in gpu.instances) for gpu in unused)
        chosen = [max(option) for option in options]
        total = (
            sum(item[0] for item in chosen),
            sum(item[1] for item in chosen),
            sum(item[2] for item in chosen) - cleared,
        )
        best = total if best is None else max(best, total)
    return None if best is None else (best[0], best[1], -best[2])


def _pair_values(target: PlannedGpu, host: StateGpu) -> Iterator[tuple[int, int, int]]:
    kind = gpu_type(host.type)
    blocked = [PlacedProfile(item.profile, item.start) for item in host.instances if item.foreign]
    ours = {(item.profile, item.start): item for item in host.instances if not item.foreign}
    for starts in _legal_starts(kind, target.slices, blocked):
        untouched = kept_instances = same = 0
        for item, start in zip(target.slices, starts, strict=True):
            there = ours.get((item.profile, start))
            if there is None:
                continue
            kept_instances += 1
            now, then = (
                Counter(map(tenant_key, tenants)) for tenants in (there.planned_tenants, item.tenants)
            )
            untouched += (now & then).total()
            same += now == then
        is_same = same == len(target.slices) == len(ours)
        yield untouched, kept_instances, 0 if is_same else -1


def _legal_starts(
    kind: GpuType, slices: Sequence[PlannedSlice], placed: Sequence[PlacedProfile]
) -> Iterator[tuple[int, ...]]:
    if layout_fault(kind, placed) is not None:
        return
    if not slices:
        yield ()
        return
    for start in kind.profile(slices[0].profile).placement_starts:
        for rest in _legal_starts(kind, slices[1:], [*placed, PlacedProfile(slices[0].profile, start)]):
            yield (start, *rest)
