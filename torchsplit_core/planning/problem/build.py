"""From the request to what a formulation needs: GPU groups, candidate layouts, admissible points.

Everything dropped here is dropped by proof: a point that breaks a limit in every plan, or that another point of the
same profile matches or beats in everything that counts; a layout whose every slice can be paired with a slice of
another layout that is at least as good for every model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchsplit_core.hardware import gpu_type, plain_profiles, unsourced_profiles
from torchsplit_core.planning.problem.colocation_sets import colocation_sets
from torchsplit_core.planning.problem.core_sizes import undominated_core_sizes
from torchsplit_core.planning.problem.dominance import drop_dominated_layouts
from torchsplit_core.planning.problem.effective_rate import EffectivePoint
from torchsplit_core.planning.problem.engine_groups import GpuClass, GpuLimit, engine_groups, needs_nodes
from torchsplit_core.planning.problem.held_gpus import HeldGpu
from torchsplit_core.planning.problem.latency_cases import CasePoints, VariantCase, admissible_cases
from torchsplit_core.planning.request.allowed_layouts import allowed_layouts, allowed_profiles, core_divisions
from torchsplit_core.planning.request.colocation_index import ColocationIndex, index_colocations
from torchsplit_core.planning.request.coverage import figure_warnings
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.objective import goal_of, requires_resilience
from torchsplit_core.values import CPU, WHOLE_GPU, InputFault, PlannedGpu, PlanRequest, Point, point_type

MAX_COMPARED_LAYOUTS = 400
"""Layouts of a GPU up to which all pairs are compared; MIG allows fewer than 100."""


@dataclass(frozen=True, slots=True)
class CandidateLayout:
    """A candidate layout: the number of each useful profile, and all its profile names.

    `present`: the co-located members on a GPU with it, each at least once, and no others; None if layouts do not
    distinguish presence.
    """

    usable_counts: Mapping[str, int]
    profiles: tuple[str, ...]
    present_members: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs that are equal to the planner. `layouts` pairs useful slices with the whole layout.

    `parts`: of GPUs that an engine takes together, which count as one GPU here with an id of its own: the GPUs that one
    takes, as (index of their group, how many). `twin_of`: the previous group with the same GPUs (they could be
    swapped), else None. `held`: its GPUs stay as they are now; those that are planned anew are the others of the same
    `gpu_ids`, in group `instead`. `must_change`: what its GPUs hold now cannot stay, unless group `stays_in` is used:
    the engine that runs on them and others.
    """

    type: str
    gpu_ids: tuple[str, ...]
    cost: float
    layouts: tuple[CandidateLayout, ...]
    twin_of: int | None = None
    parts: tuple[tuple[int, int], ...] = ()
    held: HeldGpu | None = None
    instead: int | None = None
    must_change: bool = False
    stays_in: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A point that a stage of a case (by its index in the problem) may use on slices of one profile and group.

    `excess_gib`: what it needs beyond the slice.
    """

    case: int
    model: int
    variant: int
    stage: int
    group: int
    profile: str
    effective: EffectivePoint
    excess_gib: float

    @property
    def point(self) -> Point:
        """The point as the request has it."""
        return self.effective.point

    @property
    def rate_rps(self) -> float:
        """Counted requests/s of a whole slice."""
        return self.effective.rate_rps

    @property
    def cap_rps(self) -> float:
        """Most requests/s of one instance at any share."""
        return self.effective.cap_rps

    @property
    def memory_gib(self) -> float:
        """GiB; 0 if unknown, and the instance then has its slice to itself."""
        return self.point.memory_gib or 0.0

    @property
    def needs_own_slice(self) -> bool:
        """Whether it can have no co-tenant, because its memory is unknown."""
        return self.point.memory_gib is None


@dataclass(frozen=True, slots=True)
class Problem:
    """The request, prepared for formulation.

    `colocation_index` has the request's co-locations, `colocated` their members if layouts say who is present (see
    CandidateLayout), else none. `exact`: the cases include every way to run every model (see latency_cases.MAX_CAPS).
    `capacity_gib` is by the gpu_type of points and their profile. `limits` say which GPUs groups of GPUs take.
    `on_incumbent`: see `report`.
    """

    request: PlanRequest
    groups: tuple[GpuGroup, ...]
    cases: tuple[VariantCase, ...]
    choices: tuple[Choice, ...]
    capacity_gib: Mapping[tuple[str, str], float]
    warnings: tuple[str, ...]
    elastic: bool
    elastic_latency: bool
    colocation_index: ColocationIndex = field(default_factory=ColocationIndex)
    colocated: frozenset[int] = frozenset()
    complete: bool = True
    limits: tuple[GpuLimit, ...] = ()
    on_incumbent: Callable[[float, Callable[[], tuple[PlannedGpu, ...]]], None] | None = None

    def report(self, value: float, gpus: Callable[[], tuple[PlannedGpu, ...]]) -> None:
        """A search has come to a plan of this `value` at the first level; `gpus` makes it where it is wanted."""
        if self.on_incumbent is not None:
            self.on_incumbent(value, gpus)

    @property
    def limits_service_times(self) -> bool:
        """Whether the service time of any case sets a least share."""
        return any(case.has_latency_levels for case in self.cases)

    def colocation_members(self, choice: Choice) -> frozenset[int]:
        """The co-located members that an instance of this choice puts on its GPU."""
        return self.colocation_index.members_at(choice.model, choice.variant, choice.stage)

    def slice_memory_gib(self, group: int, profile: str) -> float:
        """The memory of a slice; infinite if unknown."""
        return self.capacity_gib[point_type(self.groups[group].type), profile]


def check_admissible(request: PlanRequest) -> None:
    """Raise InputFault if no model has an admissible point on any GPU of the fleet; it gives each model's reason."""
    problem = build_problem(request)
    if problem.choices:
        return
    reasons = " ".join(warning.replace(", so its throughput is 0", "") for warning in problem.warnings)
    raise InputFault(
        "models",
        f"none can run on any GPU of the fleet. {reasons.removesuffix('.')}",
        "Raise the limits of the models named, allow other layouts, or plan on GPUs that they have figures for.",
    )


def build_problem(
    request: PlanRequest,
    *,
    per_gpu: bool = False,
    elastic: bool = False,
    elastic_latency: bool = False,
    in_use: frozenset[Point] = frozenset(),
) -> Problem:
    """Expand a valid request.

    `per_gpu` gives each GPU its own group (concrete slices need it); otherwise equal GPUs are counted together, unless
    the loss of one must be survived. With whole slices, co-location splits every layout by the members present; only if
    there are too many such sets, or requests flow between members, does every GPU get its own group. For the least
    relaxation, `elastic` allows lower minima, and `elastic_latency` higher limits, so it keeps points that only a limit
    forbids. Points `in_use` stay, though others may be better.
    """
    gpus = list_gpus(request.gpus)
    node_of = {gpu.id: gpu.node for gpu in gpus}
    warnings = [*figure_warnings(request), *_profile_warnings(gpus)]
    if request.objective.survives and not requires_resilience(request):
        warnings.append("No model has a minimum, so a plan that survives the loss of a GPU is any plan.")
    colocation_index = index_colocations(request)
    # What runs on each GPU must be known, as it is lost with it.
    per_gpu = per_gpu or requires_resilience(request) or (bool(colocation_index.flows) and not elastic)
    present_sets: Sequence[frozenset[int]] | None = None
    if request.colocations and request.sharing == "exclusive" and not per_gpu:
        present_sets = colocation_sets(colocation_index)
        per_gpu = present_sets is None
    capacity = slice_memories(request, gpus)
    cases, notes, exact = _all_cases(request, gpus, capacity, elastic_latency=elastic_latency, in_use=in_use)
    warnings += notes
    by_cost, sizes = goal_of(request).by_cost, _group_sizes(cases, gpus)
    by_node = not all(prepared.case.anywhere for prepared in cases)
    by_node = by_node or needs_nodes(gpus, sizes, by_cost=by_cost)
    groups: list[GpuGroup] = []
    choices: list[Choice] = []
    classes: list[GpuClass] = []

    def split_by_presence(layouts: tuple[CandidateLayout, ...]) -> tuple[CandidateLayout, ...]:
        if present_sets is None:
            return layouts
        return tuple(
            replace(layout, present_members=present)
            for layout in layouts
            for present in present_sets
            if len(colocation_index.minimal_members(present)) <= sum(layout.usable_counts.values())
        )

    for gpu, ids in _gpu_classes(gpus, by_cost=by_cost, by_node=by_node):
        useful = _usable_points(cases, gpu)
        layouts = split_by_presence(_candidate_layouts(request, gpu, useful, capacity, cases))
        kind = point_type(gpu.type)
        in_use_there = {point.profile for point in in_use if point.gpu_type == kind} & useful.keys()
        candidates = [
            (
                case_number,
                cases[case_number].case,
                stage,
                name,
                effective,
                _excess(effective, capacity[kind, name]),
            )
            for name in sorted({name for layout in layouts for name in layout.usable_counts} | in_use_there)
            for case_number, stage, effective in useful[name]
        ]
        for count, members in enumerate([(name,) for name in ids] if per_gpu else [ids]):
            # GPUs of which some are in a group of GPUs could not be swapped.
            is_grouped = gpu.type in sizes and gpu.can_be_whole
            twin = len(groups) - 1 if count and not is_grouped else None
            number = len(groups)
            groups.append(GpuGroup(gpu.type, members, gpu.cost, layouts, twin))
            classes.append(GpuClass(number, gpu, tuple(node_of[name] for name in members)))
            choices += [
                Choice(case_number, case.model, case.variant, stage, number, name, effective, excess)
                for case_number, case, stage, name, effective, excess in candidates
            ]
    whole = split_by_presence((CandidateLayout({WHOLE_GPU: 1}, (WHOLE_GPU,)),))
    added, limits = engine_groups(classes, sizes, len(groups), told_apart=per_gpu)
    for engine_group in added:
        number, size = len(groups), engine_group.size
        ids = tuple(f"{number}: {size} × {engine_group.type}, {n}" for n in range(engine_group.count))
        groups.append(GpuGroup(engine_group.type, ids, engine_group.cost, whole, parts=engine_group.parts))
        choices += [
            Choice(
                number_of_case, item.case.model, item.case.variant, stage, number, WHOLE_GPU, effective, 0.0
            )
            for number_of_case, item in enumerate(cases)
            for stage, points in enumerate(item.stages)
            for effective in points
            if (effective.point.gpu_type, effective.point.tensor_parallel) == (engine_group.type, size)
        ]
    return Problem(
        request,
        tuple(groups),
        tuple(prepared.case for prepared in cases),
        tuple(choices),
        capacity,
        tuple(warnings),
        elastic,
        elastic_latency,
        colocation_index,
        colocation_index.members if present_sets is not None else frozenset(),
        exact,
        tuple(limits),
    )


def _all_cases(
    request: PlanRequest,
    gpus: Sequence[FleetGpu],
    capacity: Mapping[tuple[str, str], float],
    *,
    elastic_latency: bool,
    in_use: frozenset[Point],
) -> tuple[list[CasePoints], list[str], bool]:
    """The cases of all models on this fleet, notes on what was left out, and whether these are all cases."""
    nodes = tuple(dict.fromkeys(gpu.node for gpu in gpus))
    cases: list[CasePoints] = []
    notes: list[str] = []
    exact = True
    for index in range(len(request.models)):
        case_set = admissible_cases(request, index, capacity, nodes, elastic=elastic_latency, in_use=in_use)
        cases += case_set.cases
        notes += case_set.notes
        exact = exact and case_set.exact
    return cases, notes, exact


def slice_memories(request: PlanRequest, gpus: Sequence[FleetGpu]) -> dict[tuple[str, str], float]:
    """GiB by the gpu_type of points and their profile, for every profile in some layout."""
    distinct = {replace(gpu, id="", node=None) for gpu in gpus}
    offered = {(gpu.type, name) for gpu in distinct for name in allowed_profiles(request, gpu)}
    return {(point_type(kind), name): _slice_memory_gib(kind, name) for kind, name in offered}


def _gpu_classes(
    gpus: Sequence[FleetGpu], *, by_cost: bool, by_node: bool
) -> list[tuple[FleetGpu, tuple[str, ...]]]:
    """Equal GPUs grouped, in order of first appearance."""
    by_key: dict[tuple[object, ...], list[FleetGpu]] = {}
    for gpu in gpus:
        cost, node = gpu.cost if by_cost else None, gpu.node if by_node else None
        key = (gpu.type, gpu.layouts, gpu.either, cost, node)
        by_key.setdefault(key, []).append(gpu)
    return [(members[0], tuple(gpu.id for gpu in members)) for members in by_key.values()]


def _group_sizes(cases: Sequence[CasePoints], gpus: Sequence[FleetGpu]) -> dict[str, list[int]]:
    """By GPU type that may be without MIG, of how many GPUs engines are that take several, ascending."""
    whole = {gpu.type for gpu in gpus if gpu.can_be_whole}
    sizes: dict[str, set[int]] = {}
    for item in cases:
        for points in item.stages:
            for effective in points:
                if effective.point.tensor_parallel > 1 and effective.point.gpu_type in whole:
                    sizes.setdefault(effective.point.gpu_type, set()).add(effective.point.tensor_parallel)
    return {kind: sorted(known) for kind, known in sizes.items()}


def _usable_points(
    cases: Sequence[CasePoints], gpu: FleetGpu
) -> dict[str, list[tuple[int, int, EffectivePoint]]]:
    """By profile, what may run on one such GPU: case, stage, point."""
    by_profile: dict[str, list[tuple[int, int, EffectivePoint]]] = {}
    kind = point_type(gpu.type)
    for number, item in enumerate(cases):
        if not item.case.allows_node(gpu.node):
            continue
        for stage, points in enumerate(item.stages):
            for effective in points:
                if effective.point.gpu_type == kind and effective.point.tensor_parallel == 1:
                    by_profile.setdefault(effective.point.profile, []).append((number, stage, effective))
    return by_profile


def _excess(effective: EffectivePoint, capacity_gib: float) -> float:
    return max(0.0, (effective.point.memory_gib or 0.0) - capacity_gib)


def _slice_memory_gib(kind: str, name: str) -> float:
    memory = gpu_type(kind).profile(name).memory_gib
    return float("inf") if memory is None else memory


def _profile_warnings(gpus: Sequence[FleetGpu]) -> list[str]:
    warnings = []
    for kind in dict.fromkeys(gpu.type for gpu in gpus if gpu.layouts is None):
        left_out = unsourced_profiles(gpu_type(kind))
        if left_out:
            warnings.append(
                f"{kind}: {', '.join(left_out)} left out of the layouts, no listing gives their memory."
            )
        if gpu_type(kind).divided == "cores":
            if any(profile.memory_gib is None for profile in gpu_type(kind).profiles):
                warnings.append(f"{kind}: its memory is not known, so none of its points is left out for it.")
        elif not plain_profiles(gpu_type(kind)):
            warnings.append(
                f"{kind}: no profile with a known memory, so its GPUs stay unused. Leave them whole: {kind}:whole."
            )
    return warnings


def _candidate_layouts(
    request: PlanRequest,
    gpu: FleetGpu,
    useful: Mapping[str, list[tuple[int, int, EffectivePoint]]],
    capacity: Mapping[tuple[str, str], float],
    cases: Sequence[CasePoints],
) -> tuple[CandidateLayout, ...]:
    """The layouts of a GPU reduced to slices that some model can use, without dominated ones."""
    by_usable: dict[tuple[str, ...], CandidateLayout] = {}
    latency_limited = {number for number, item in enumerate(cases) if item.case.has_latency_levels}
    divided = gpu.layouts is None and gpu_type(gpu.type).divided == "cores"
    if divided:
        known = any(capacity[CPU, name] < float("inf") for name in useful)
        penalised = request.objective.memory_violation_penalty is not None
        by_memory = known and (penalised or request.sharing == "fractional")
        offered = core_divisions(
            gpu.type, undominated_core_sizes(useful, latency_limited, by_memory=by_memory)
        )
    else:
        offered = allowed_layouts(request, gpu)
    for profiles in offered:
        names = tuple(name for name in profiles if name in useful)
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        # Of layouts with equal useful slices, the one with the fewest idle slices represents all.
        if names and (names not in by_usable or len(profiles) < len(by_usable[names].profiles)):
            by_usable[names] = CandidateLayout(counts, profiles)
    if divided or len(by_usable) > MAX_COMPARED_LAYOUTS:
        # A host's dominated sizes are already left out: comparing thousands of layouts would find no more.
        return tuple(by_usable.values())
    sizes = {name: size for (kind, name), size in capacity.items() if kind == point_type(gpu.type)}
    undominated = drop_dominated_layouts(list(by_usable), useful, request, sizes, latency_limited)
    return tuple(by_usable[names] for names in undominated)
