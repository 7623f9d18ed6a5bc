"""From counts to named GPUs: which GPU takes which layout, which slice which tenant, and at which start.

Exact, because a count per group and layout can be dealt to the group's equal GPUs in any way,
and whole instances to equal slices in any way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.planning.expand import Choice, Problem
from torchsplit_core.planning.fleet import list_gpus
from torchsplit_core.planning.model import Formulation
from torchsplit_core.planning.presence import one_each
from torchsplit_core.planning.solution import Solution
from torchsplit_core.values import InternalFault, Layout, PlannedGpu, PlannedSlice, PlanRequest, Tenant


@dataclass
class Slot:
    """A slice of a GPU that is being filled with (choice, share) pairs."""

    gpu_id: str
    group: int
    profile: str
    tenants: list[tuple[Choice, float]] = field(default_factory=list)

    @property
    def free(self) -> float:
        """The share that is left."""
        return max(0.0, 1.0 - sum(share for _, share in self.tenants))


@dataclass
class Bench:
    """The slots of the whole fleet, and the layout each GPU has: its profiles, and its (group, number)."""

    slots: list[Slot]
    layouts: dict[str, tuple[str, ...]]
    columns: dict[str, tuple[int, int]]


def lay_out(problem: Problem, layouts: Mapping[tuple[int, int], int]) -> Bench:
    """Deal the layouts of each group to its GPUs in order; every useful slice becomes a slot."""
    bench = Bench([], {}, {})
    for g, group in enumerate(problem.groups):
        names = iter(group.gpu_ids)
        for number, layout in enumerate(group.layouts):
            for _ in range(layouts.get((g, number), 0)):
                gpu_id = next(names)
                bench.layouts[gpu_id] = layout.profiles
                bench.columns[gpu_id] = (g, number)
                for profile in sorted(layout.useful):
                    bench.slots += [Slot(gpu_id, g, profile) for _ in range(layout.useful[profile])]
    return bench


def seat_whole(built: Formulation, solution: Solution) -> Bench:
    """Seat the whole instances of a formulation's solution, co-located models on the GPUs of their layout."""
    amounts = [(built.uses[use], round(solution.amounts[use])) for use in sorted(solution.amounts)]
    bench = lay_out(built.problem, solution.layouts)
    for (g, number), count in solution.layouts.items():
        here = [
            (use.choice, times) for use, times in amounts if (use.choice.group, use.layout) == (g, number)
        ]
        if here:
            _seat_together(bench, built.problem, g, number, count, here)
    _seat_anywhere(bench, [(use.choice, times) for use, times in amounts if use.layout is None])
    return bench


def seat_counts(
    problem: Problem, layouts: Mapping[tuple[int, int], int], amounts: Sequence[tuple[Choice, int]]
) -> Bench:
    """Seat whole instances (exclusive) on slots of their group and profile, in the order given."""
    bench = lay_out(problem, layouts)
    _seat_anywhere(bench, amounts)
    return bench


def _seat_anywhere(bench: Bench, amounts: Sequence[tuple[Choice, int]]) -> None:
    waiting: dict[tuple[int, str], list[Choice]] = {}
    for choice, count in amounts:
        waiting.setdefault((choice.group, choice.profile), []).extend([choice] * count)
    for slot in bench.slots:
        queue = waiting.get((slot.group, slot.profile))
        if queue and not slot.tenants:
            slot.tenants.append((queue.pop(0), 1.0))
    if any(waiting.values()):
        raise InternalFault("The planner's counts hold more instances than slices.")


def _seat_together(
    bench: Bench, problem: Problem, group: int, number: int, gpus: int, amounts: Sequence[tuple[Choice, int]]
) -> None:
    """One instance of every present model on each GPU with the layout, then the rest on any of them."""
    layout = problem.groups[group].layouts[number]
    ids = [gpu for gpu, (g, chosen) in bench.columns.items() if (g, chosen) == (group, number)]
    waiting: dict[tuple[int, str], list[Choice]] = {}
    for choice, count in amounts:
        waiting.setdefault((choice.model, choice.profile), []).extend([choice] * count)
    counts: dict[int, dict[str, int]] = {}
    for (model, profile), queue in waiting.items():
        counts.setdefault(model, {})[profile] = len(queue)
    free: dict[tuple[str, str], list[Slot]] = {}
    for slot in bench.slots:
        if slot.gpu_id in ids:
            free.setdefault((slot.gpu_id, slot.profile), []).append(slot)
    for gpu, dealt in zip(ids, one_each(counts, layout.useful, gpus), strict=True):
        for model, profile in dealt.items():
            free[gpu, profile].pop(0).tenants.append((waiting[model, profile].pop(0), 1.0))
    for (_, profile), queue in waiting.items():
        for gpu in ids:
            while queue and free.get((gpu, profile)):
                free[gpu, profile].pop(0).tenants.append((queue.pop(0), 1.0))
        if queue:
            raise InternalFault("The planner's counts hold more instances than slices.")


def seat_shares(built: Formulation, solution: Solution) -> Bench:
    """Seat shares that already know their slice (concrete)."""
    bench = lay_out(built.problem, solution.layouts)
    by_pool: dict[tuple[int, str], list[Slot]] = {}
    for slot in bench.slots:
        by_pool.setdefault((slot.group, slot.profile), []).append(slot)
    for use, share in sorted(solution.amounts.items()):
        choice, number = built.uses[use].choice, built.uses[use].slot
        assert number is not None
        by_pool[choice.group, choice.profile][number].tenants.append((choice, share))
    for slot in bench.slots:
        total = sum(share for _, share in slot.tenants)
        if total > 1.0:
            slot.tenants = [(choice, share / total) for choice, share in slot.tenants]
    return bench


def materialise(request: PlanRequest, bench: Bench) -> tuple[PlannedGpu, ...]:
    """Every GPU of the fleet with its slices at legal starts; one without a tenant has none."""
    by_gpu: dict[str, list[Slot]] = {}
    for slot in bench.slots:
        by_gpu.setdefault(slot.gpu_id, []).append(slot)
    planned = []
    for gpu in list_gpus(request.gpus):
        slots = by_gpu.get(gpu.id, [])
        if not any(slot.tenants for slot in slots):
            planned.append(PlannedGpu(gpu.id, gpu.type, False))
            continue
        layout = _placed(gpu.type, bench.layouts[gpu.id])
        if layout is None:
            raise InternalFault(f"{gpu.id} was given a layout that is not legal.")
        slices = []
        for item in layout.placed:
            tenants: tuple[Tenant, ...] = ()
            # Idle slots of a profile come after the busy ones in start order.
            same = [slot for slot in slots if slot.profile == item.profile]
            if same:
                chosen = min(same, key=lambda slot: (not slot.tenants, slots.index(slot)))
                slots.remove(chosen)
                tenants = _tenants(request, chosen.tenants)
            slices.append(PlannedSlice(item.profile, item.start, tenants))
        planned.append(PlannedGpu(gpu.id, gpu.type, True, tuple(slices)))
    return tuple(planned)


@lru_cache(maxsize=1024)
def _placed(kind: str, profiles: tuple[str, ...]) -> Layout | None:
    """Large fleets repeat a few layouts."""
    return place_layout(gpu_type(kind), profiles)


def _tenants(request: PlanRequest, seated: Sequence[tuple[Choice, float]]) -> tuple[Tenant, ...]:
    found = []
    for choice, share in seated:
        model = request.models[choice.model]
        variant = model.variants[choice.variant]
        point = choice.point
        found.append(
            Tenant(
                model=model.name,
                variant=variant.name,
                stage=variant.stages[choice.stage].name,
                share=share,
                batch_size=point.batch_size,
                processes=point.processes,
                throughput_rps=share * point.throughput_rps,
                memory_gib=point.memory_gib,
            )
        )
    return tuple(found)
