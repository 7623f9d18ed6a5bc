"""The plan that touches fewest GPUs among those that serve every model as well as a given plan, on no more GPUs.

A program in whole numbers for whole slices, GPUs that are alike counted together:

| row | formula |
|---|---|
| fleet[g] | Σ_c stays[g,c] + Σ_l anew[g,l] ≤ GPUs[g] |
| slices[g,p] | Σ_ms instances[g,p,m,s] ≤ Σ_l slices[l,p] · anew[g,l] |
| served[m,s] | Σ rate · instances + Σ_c rate[c] · stays ≥ wanted[m] |
| used | Σ stays + Σ anew ≤ GPUs of the plan; with an objective of cost the same of their costs |
| touched[g] | touched[g] ≥ Σ_l anew[g,l], and ≥ GPUs in use now − Σ_c stays[g,c] |

It minimises Σ touched. A model keeps the variant of the given plan, and of equal slices the point with the most
requests/s; what such a plan breaks all the same, its verification finds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.planning.problem.build import Choice, GpuGroup, build_problem
from torchsplit_core.planning.problem.effective_rate import planned_rps
from torchsplit_core.planning.problem.held_gpus import (
    HeldGpu,
    by_content,
    held_gpus,
    is_as_now,
    points_in_use,
)
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import goal_of, has_tiers
from torchsplit_core.solver.row_program import RowProgram
from torchsplit_core.values import (
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    Tenant,
    tenants_on,
)

SLACK = 1e-9
"""Relative: rates are sums of decimals."""

INF = float("inf")
Place = tuple[int, int]
"""Model and stage by number."""


def closest_gpus(request: PlanRequest, plan: PlanOutcome, seconds: float) -> tuple[PlannedGpu, ...] | None:
    """The GPUs of the plan that touches fewest of what runs now (`current`), found within the seconds; not verified.

    None where the program does not say all that counts (shared slices, co-locations, penalties, a GPU to spare, GPUs
    with and without MIG, engines of LLMs), or has no solution in time.
    """
    if not _is_plain(request):
        return None
    model = _Closest(request, plan)
    return model.solve(seconds)


def _is_plain(request: PlanRequest) -> bool:
    objective = request.objective
    return (
        request.sharing == "exclusive"
        and not request.colocations
        and not objective.memory_violation_penalty
        and not objective.survives
        and not any(gpu.either for gpu in list_gpus(request.gpus))
        and all(model.llm is None and model.max_response_ms is None for model in request.models)
    )


@dataclass
class _GroupColumns:
    """Columns of a group: by content that may stay, by layout, and by (profile, place)."""

    group: GpuGroup
    contents: list[tuple[HeldGpu, tuple[str, ...], int | None]]
    anew: int
    touched: int
    instances: dict[tuple[str, Place], tuple[int, Choice]] = field(default_factory=dict)

    @property
    def staying(self) -> list[int]:
        return [column for *_, column in self.contents if column is not None]

    @property
    def layouts(self) -> range:
        return range(self.anew, self.anew + len(self.group.layouts))


class _Closest:
    def __init__(self, request: PlanRequest, plan: PlanOutcome) -> None:
        self.request, self.plan = request, plan
        self.held = held_gpus(request)
        self.problem = build_problem(request, in_use=points_in_use(self.held))
        self.program = RowProgram()
        variants = {
            model.name: {item.name: at for at, item in enumerate(model.variants)} for model in request.models
        }
        self.variant = {
            number: variants[model.name][model.variant]
            for number, model in enumerate(plan.models)
            if model.variant is not None
        }
        self.served: dict[Place, list[tuple[int, float]]] = {
            (number, stage): []
            for number, variant in self.variant.items()
            for stage in range(len(request.models[number].variants[variant].stages))
        }
        self.groups = [self._columns(number, group) for number, group in enumerate(self.problem.groups)]

    def solve(self, seconds: float) -> tuple[PlannedGpu, ...] | None:
        if self.problem.limits:
            return None
        self._add_rows()
        begun = time.perf_counter()
        start = self._start()
        solution = self.program.solve(seconds, start=start)
        if (
            solution.status == "optimal"
            and start
            and _touched_by(self.groups, solution.values) == _touched_by(self.groups, start)
        ):
            # HiGHS may call a start optimal that is not (docs/internals/formulations.md), so it is asked without.
            left = seconds - (time.perf_counter() - begun)
            again = self.program.solve(left)
            solution = again if again.status == "optimal" else solution
        if solution.status not in ("optimal", "feasible"):
            return None
        counts = [round(value) for value in solution.values]
        drawn = {gpu.id: gpu for group in self.groups for gpu in _drawn(self.request, group, counts)}
        return tuple(
            drawn.get(gpu.id, PlannedGpu(gpu.id, gpu.type, False)) for gpu in list_gpus(self.request.gpus)
        )

    def _columns(self, number: int, group: GpuGroup) -> _GroupColumns:
        size = len(group.gpu_ids)
        contents: list[tuple[HeldGpu, tuple[str, ...], int | None]] = []
        for content, ids in by_content(group.gpu_ids, self.held):
            if not content.slices:
                continue
            column = None
            if content.occupants is not None and all(
                self.variant.get(occupant[0]) == occupant[1] for occupant in content.occupants
            ):
                column = self.program.add_columns([0.0], [float(len(ids))])
                for occupant, count in content.occupants.items():
                    rate = count * planned_rps(self.request, occupant[3])
                    self.served[occupant[0], occupant[2]].append((column, rate))
            contents.append((content, ids, column))
        anew = self.program.add_columns([0.0] * len(group.layouts), [float(size)] * len(group.layouts))
        columns = _GroupColumns(group, contents, anew, self.program.add_columns([1.0], [float(size)]))
        best: dict[tuple[str, Place], Choice] = {}
        for choice in self.problem.choices:
            if choice.group == number and self.variant.get(choice.model) == choice.variant:
                key = choice.profile, (choice.model, choice.stage)
                if key not in best or choice.rate_rps > best[key].rate_rps:
                    best[key] = choice
        for key, choice in best.items():
            column = self.program.add_columns([0.0], [INF])
            columns.instances[key] = column, choice
            self.served[key[1]].append((column, choice.rate_rps))
        return columns

    def _add_rows(self) -> None:
        program = self.program
        used: dict[int, float] = {}
        for columns in self.groups:
            staying, layouts = columns.staying, list(columns.layouts)
            present = sum(len(ids) for _, ids, _ in columns.contents)
            in_use = [*staying, *layouts]
            used |= dict.fromkeys(in_use, columns.group.cost)
            program.add_row(-INF, float(len(columns.group.gpu_ids)), in_use, [1.0] * len(in_use))
            program.add_row(0.0, INF, [columns.touched, *layouts], [1.0, *[-1.0] * len(layouts)])
            program.add_row(float(present), INF, [columns.touched, *staying], [1.0] * (1 + len(staying)))
            for profile in {profile for profile, _ in columns.instances}:
                uses = [column for (name, _), (column, _) in columns.instances.items() if name == profile]
                slices = [float(layout.usable_counts.get(profile, 0)) for layout in columns.group.layouts]
                program.add_row(
                    -INF, 0.0, [*uses, *layouts], [*[1.0] * len(uses), *(-count for count in slices)]
                )
        gpus = sum(gpu.used for gpu in self.plan.gpus)
        program.add_row(-INF, float(gpus), list(used), [1.0] * len(used))
        if goal_of(self.request).by_cost:
            costs = {gpu.id: gpu.cost for gpu in list_gpus(self.request.gpus)}
            most = sum(costs[gpu.id] for gpu in self.plan.gpus if gpu.used)
            program.add_row(-INF, most + SLACK * abs(most), list(used), list(used.values()))
        for (model, _), terms in self.served.items():
            wanted = self._wanted_rps(model) * (1 - SLACK)
            program.add_row(wanted, INF, [column for column, _ in terms], [rate for _, rate in terms])

    def _start(self) -> dict[int, float]:
        """The columns of the given plan itself: a first solution, which mostly stands where it can be kept."""
        start = dict.fromkeys(range(len(self.program.cost)), 0.0)
        planned = {gpu.id: gpu for gpu in self.plan.gpus if gpu.used}
        for columns in self.groups:
            begun = {id: column for _, ids, column in columns.contents for id in ids}
            anew = 0.0
            for name in columns.group.gpu_ids:
                gpu, stays = planned.get(name), begun.get(name)
                if gpu is None:
                    continue
                if stays is not None and is_as_now(gpu, self.held[name]):
                    start[stays] += 1
                    continue
                profiles = tuple(sorted(item.profile for item in gpu.slices))
                numbers = [
                    number
                    for number, layout in zip(columns.layouts, columns.group.layouts, strict=True)
                    if layout.profiles == profiles
                ]
                if not numbers:
                    return {}
                start[numbers[0]] += 1
                anew += 1
                for _, item, tenant in tenants_on([gpu]):
                    use = self._use(columns, item.profile, tenant)
                    if use is None:
                        return {}
                    start[use] += 1
            changed = len(begun) - sum(start[column] for column in columns.staying)
            start[columns.touched] = max(anew, changed)
        return start

    def _use(self, columns: _GroupColumns, profile: str, tenant: Tenant) -> int | None:
        for (name, (number, stage)), (column, choice) in columns.instances.items():
            model = self.request.models[number]
            stages = model.variants[choice.variant].stages
            if (name, model.name, stages[stage].name) == (profile, tenant.model, tenant.stage):
                return column
        return None

    def _wanted_rps(self, number: int) -> float:
        """What a model must have in a plan that is as good: of the cheapest its minimum, else what it has."""
        spec, got = self.request.models[number], self.plan.models[number]
        goal = goal_of(self.request)
        least = spec.min_throughput_rps or 0.0
        if goal.by_cost:
            return least
        if goal.fair and not goal.every_level and not has_tiers(self.request):
            value = self.plan.objective.value or 0.0
            return max(least, value * spec.weight * spec.demand_rps)
        return max(
            least, min(got.throughput_rps, spec.demand_rps) if spec.cap_at_demand else got.throughput_rps
        )


def _touched_by(groups: Sequence[_GroupColumns], values: Mapping[int, float] | NDArray[np.float64]) -> int:
    """GPUs that change in a solution."""
    return sum(round(values[columns.touched]) for columns in groups)


def _drawn(request: PlanRequest, columns: _GroupColumns, counts: list[int]) -> Iterator[PlannedGpu]:
    """The GPUs of a group that have slices: those that stay, then those planned anew, on GPUs that are in use first."""
    free: list[str] = []
    for content, ids, column in columns.contents:
        staying = 0 if column is None else counts[column]
        for name in ids[:staying]:
            yield PlannedGpu(name, columns.group.type, bool(content.busy_slices), content.slices)
        free += ids[staying:]
    busy = {name for _, ids, _ in columns.contents for name in ids}
    free += [name for name in columns.group.gpu_ids if name not in busy]
    waiting: dict[str, list[Choice]] = {}
    for (profile, _), (column, choice) in columns.instances.items():
        waiting.setdefault(profile, []).extend([choice] * counts[column])
    for number, layout in zip(columns.layouts, columns.group.layouts, strict=True):
        for _ in range(counts[number]):
            yield _anew(request, columns.group, free.pop(0), layout.profiles, waiting)


def _anew(
    request: PlanRequest,
    group: GpuGroup,
    name: str,
    profiles: tuple[str, ...],
    waiting: dict[str, list[Choice]],
) -> PlannedGpu:
    placed = place_layout(gpu_type(group.type), profiles)
    assert placed is not None, "layouts of a problem are legal"
    slices = tuple(
        PlannedSlice(
            item.profile,
            item.start,
            (_tenant(request, waiting[item.profile].pop()),) if waiting.get(item.profile) else (),
        )
        for item in placed.placed
    )
    used = any(item.tenants for item in slices)
    return PlannedGpu(name, group.type, used, slices if used else ())


def _tenant(request: PlanRequest, choice: Choice) -> Tenant:
    model, point = request.models[choice.model], choice.point
    variant = model.variants[choice.variant]
    return Tenant(
        model.name,
        variant.name,
        variant.stages[choice.stage].name,
        1.0,
        point.batch_size,
        point.processes,
        planned_rps(request, point),
        point.memory_gib,
        point.basis,
        point.low_rps,
        point.high_rps,
    )
