"""From the request to what a formulation needs: GPU groups, candidate layouts, admissible points.

Everything dropped here is dropped by proof: a point that breaks a limit whatever else is
chosen, or one that another point of the same profile matches or beats in every respect that
counts; a layout whose every slice has a partner of its own, at least as good for every
model, in another layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.hardware import gpu_type, maximal_multisets, plain_profiles, unsourced_profiles
from torchsplit_core.planning.problem.colocation_sets import colocation_sets
from torchsplit_core.planning.problem.dominance import drop_dominated_layouts, pareto_points
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.values import PlanModel, PlanRequest, Point
from torchsplit_core.values.units import GB

LATENCY_SLACK = 1e-9
"""Relative slack of latency limits, for sums of decimal figures that meet a limit exactly."""


@dataclass(frozen=True, slots=True)
class CandidateLayout:
    """A candidate layout: how many of each useful profile, and all its profile names.

    `present` holds the models of co-locations that stand on a GPU with it, each at least once,
    and no others of them do; None where presence is not told apart by layout.
    """

    useful: Mapping[str, int]
    profiles: tuple[str, ...]
    present: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs that are the same to the planner. `layouts` pairs useful slices with the whole layout.

    `symmetric_to` is the group before it with the same GPUs (they could be swapped), None otherwise.
    """

    type: str
    gpu_ids: tuple[str, ...]
    cost: float
    layouts: tuple[CandidateLayout, ...]
    symmetric_to: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One point that one stage may use on the slices of one profile of one group."""

    model: int
    variant: int
    stage: int
    group: int
    profile: str
    point: Point
    memory_gib: float
    excess_gib: float


@dataclass(frozen=True, slots=True)
class VariantCase:
    """A variant that can run: its transfer time, and what is left of the latency limit for its stages.

    `levels` says that its points can together break the limit, so the choice must be kept in step.
    """

    model: int
    variant: int
    stages: int
    transfer_ms: float
    budget_ms: float | None
    levels: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """The request, ready to be formulated.

    `colocated` are the models of co-locations where layouts say who is present (see CandidateLayout).
    """

    request: PlanRequest
    groups: tuple[GpuGroup, ...]
    cases: tuple[VariantCase, ...]
    choices: tuple[Choice, ...]
    capacity_gib: Mapping[tuple[str, str], float]
    warnings: tuple[str, ...]
    elastic: bool
    elastic_latency: bool
    colocated: frozenset[int] = frozenset()

    def index_of(self, name: str) -> int:
        """The place of a model in the request."""
        return next(number for number, model in enumerate(self.request.models) if model.name == name)


def build_problem(
    request: PlanRequest, *, per_gpu: bool = False, elastic: bool = False, elastic_latency: bool = False
) -> Problem:
    """Expand a valid request.

    `per_gpu` gives each GPU a group of its own (concrete slices need it); otherwise equal GPUs
    are counted together. With whole slices a co-location splits every layout by the models that
    are present, and only where there would be too many of these every GPU stands alone. For the
    least relaxation `elastic` lets minima be given up, and `elastic_latency` lets limits grow, so
    it keeps points that only a limit forbids.
    """
    gpus = list_gpus(request.gpus)
    warnings = _profile_warnings(gpus)
    present_sets: Sequence[frozenset[int]] | None = None
    if request.colocations and request.sharing == "exclusive" and not per_gpu:
        present_sets = colocation_sets(request)
        per_gpu = present_sets is None
    buckets = _buckets(gpus, by_cost=goal_of(request).by_cost)
    offered = {(gpu.type, name) for gpu, _ in buckets for layout in _layouts_of(gpu) for name in layout}
    capacity = {(kind, name): _capacity(kind, name) for kind, name in offered}
    cases: list[VariantCase] = []
    kept: list[tuple[int, int, int, Point]] = []
    for index, model in enumerate(request.models):
        found, notes = _admissible(request, index, model, capacity, elastic_latency)
        warnings += notes
        for case, stages in found:
            cases.append(case)
            kept += [
                (index, case.variant, stage, point) for stage, points in enumerate(stages) for point in points
            ]
    useful: dict[tuple[str, str], list[tuple[int, int, int, Point]]] = {}
    for item in kept:
        useful.setdefault((item[3].gpu_type, item[3].profile), []).append(item)
    timed = {(case.model, case.variant) for case in cases if case.levels}
    groups: list[GpuGroup] = []
    choices: list[Choice] = []
    for gpu, ids in buckets:
        layouts = _candidate_layouts(request, gpu, useful, capacity, timed)
        if present_sets is not None:
            layouts = tuple(
                replace(layout, present=present)
                for layout in layouts
                for present in present_sets
                if len(present) <= sum(layout.useful.values())
            )
        for count, members in enumerate([(name,) for name in ids] if per_gpu else [ids]):
            twin = len(groups) - 1 if count else None
            number = len(groups)
            groups.append(GpuGroup(gpu.type, members, gpu.cost, layouts, twin))
            for name in sorted({name for layout in layouts for name in layout.useful}):
                for owner, variant, stage, point in useful[gpu.type, name]:
                    memory = point.memory_gib or 0.0
                    excess = max(0.0, memory - capacity[gpu.type, name])
                    choices.append(Choice(owner, variant, stage, number, name, point, memory, excess))
    return Problem(
        request,
        tuple(groups),
        tuple(cases),
        tuple(choices),
        capacity,
        tuple(warnings),
        elastic,
        elastic_latency,
        frozenset().union(*present_sets) if present_sets is not None else frozenset(),
    )


def transfer_ms(cut_bytes: Iterable[float], link_gb_per_s: float | None) -> float:
    """Milliseconds that the cuts of a variant take; no link figure means no time."""
    return 0.0 if link_gb_per_s is None else sum(cut_bytes) / (link_gb_per_s * GB) * 1e3


def _buckets(gpus: Sequence[FleetGpu], *, by_cost: bool) -> list[tuple[FleetGpu, tuple[str, ...]]]:
    """Equal GPUs together, in the order of their first appearance."""
    found: dict[tuple[object, ...], list[FleetGpu]] = {}
    for gpu in gpus:
        found.setdefault((gpu.type, gpu.layouts, gpu.cost if by_cost else None), []).append(gpu)
    return [(same[0], tuple(gpu.id for gpu in same)) for same in found.values()]


def _layouts_of(gpu: FleetGpu) -> tuple[tuple[str, ...], ...]:
    return maximal_multisets(gpu_type(gpu.type)) if gpu.layouts is None else gpu.layouts


def _capacity(kind: str, name: str) -> float:
    memory = gpu_type(kind).profile(name).memory_gib
    return float("inf") if memory is None else memory


def _profile_warnings(gpus: Sequence[FleetGpu]) -> list[str]:
    found = []
    for kind in dict.fromkeys(gpu.type for gpu in gpus if gpu.layouts is None):
        left_out = unsourced_profiles(gpu_type(kind))
        if left_out:
            found.append(
                f"{kind}: {', '.join(left_out)} left out of the layouts, no listing gives their memory."
            )
        if not plain_profiles(gpu_type(kind)):
            found.append(f"{kind}: no profile with a known memory, so its GPUs stay unused.")
    return found


def _admissible(
    request: PlanRequest,
    index: int,
    model: PlanModel,
    capacity: Mapping[tuple[str, str], float],
    elastic: bool,
) -> tuple[list[tuple[VariantCase, list[list[Point]]]], list[str]]:
    """The variants that can run, each with the points of its stages that are worth keeping."""
    objective = request.objective
    soft_memory = objective.memory_violation_penalty is not None
    found = []
    too_large = 0
    for number, variant in model.allowed_variants:
        transfer = transfer_ms(variant.cut_bytes, request.link_gb_per_s)
        budget: float | None = None
        if model.max_latency_ms is not None:
            budget = model.max_latency_ms * (1 + LATENCY_SLACK) - transfer
        stages: list[list[Point]] = []
        for stage in variant.stages:
            here = [point for point in stage.points if (point.gpu_type, point.profile) in capacity]
            fitting = [
                point
                for point in here
                if soft_memory or (point.memory_gib or 0.0) <= capacity[point.gpu_type, point.profile] + 1e-9
            ]
            too_large += len(here) - len(fitting)
            stages.append(fitting)
        limit = None if elastic else budget
        if limit is not None and not _keep_within(stages, limit):
            continue
        if not all(stages):
            continue
        longest = sum(max(point.latency_ms for point in points) for points in stages)
        # With sharing, a shorter latency also buys a smaller share: the limit always counts.
        levels = budget is not None and (elastic or longest > budget or request.sharing == "fractional")
        pruned = [pareto_points(points, request, capacity, by_latency=levels) for points in stages]
        found.append((VariantCase(index, number, len(stages), transfer, budget, levels), pruned))
    notes = []
    if too_large:
        plural = "s need" if too_large > 1 else " needs"
        notes.append(f"{model.name}: {too_large} point{plural} more memory than the slice has and stay out.")
    if not found:
        notes.append(
            f"{model.name}: no point of it can run on this fleet within its limits, so its throughput is 0."
        )
    return found, notes


def _keep_within(stages: list[list[Point]], budget: float) -> bool:
    """Drop points that break the budget even beside the quickest points of the other stages."""
    if not all(stages):
        return False
    quickest = [min(point.latency_ms for point in points) for points in stages]
    total = sum(quickest)
    for number, points in enumerate(stages):
        others = total - quickest[number]
        points[:] = [point for point in points if point.latency_ms + others <= budget]
    return all(stages)


def _candidate_layouts(
    request: PlanRequest,
    gpu: FleetGpu,
    useful: Mapping[tuple[str, str], list[tuple[int, int, int, Point]]],
    capacity: Mapping[tuple[str, str], float],
    timed: set[tuple[int, int]],
) -> tuple[CandidateLayout, ...]:
    """The layouts of a GPU reduced to slices that some model can use, without dominated ones."""
    found: dict[tuple[str, ...], CandidateLayout] = {}
    for profiles in _layouts_of(gpu):
        names = tuple(name for name in profiles if (gpu.type, name) in useful)
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        # Of layouts equal in their useful slices the one with the fewest idle slices stands for all.
        if names and (names not in found or len(profiles) < len(found[names].profiles)):
            found[names] = CandidateLayout(counts, profiles)
    by_profile = {name: items for (kind, name), items in useful.items() if kind == gpu.type}
    sizes = {name: size for (kind, name), size in capacity.items() if kind == gpu.type}
    kept = drop_dominated_layouts(list(found), by_profile, request, sizes, timed)
    return tuple(found[names] for names in kept)
