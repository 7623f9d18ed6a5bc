"""From the request to what a formulation needs: GPU groups, candidate layouts, admissible points.

Everything dropped here is dropped by proof: a point that breaks a limit whatever else is
chosen, or one that another point of the same profile matches or beats in every respect that
counts; a layout whose every slice has a partner of its own, at least as good for every
model, in another layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchsplit_core.hardware import gpu_type, plain_profiles, unsourced_profiles
from torchsplit_core.planning.problem.cases import FoundCase, VariantCase, admissible_cases
from torchsplit_core.planning.problem.colocation_sets import colocation_sets
from torchsplit_core.planning.problem.core_sizes import sizes_worth_cutting
from torchsplit_core.planning.problem.dominance import drop_dominated_layouts
from torchsplit_core.planning.problem.usable import Usable
from torchsplit_core.planning.request.coverage import figure_warnings
from torchsplit_core.planning.request.fleet import FleetGpu, list_gpus
from torchsplit_core.planning.request.objective import goal_of, must_survive
from torchsplit_core.planning.request.offered import divisions, offered_layouts, offered_profiles
from torchsplit_core.planning.request.ties import Ties, ties_of
from torchsplit_core.values import CPU, InputFault, PlanRequest, Point, point_type

MOST_COMPARED = 400
"""Layouts of a GPU up to which each is compared with each; MIG allows fewer than 100."""


@dataclass(frozen=True, slots=True)
class CandidateLayout:
    """A candidate layout: how many of each useful profile, and all its profile names.

    `present` holds the members of co-locations that stand on a GPU with it, each at least once,
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
    """One point that one stage of a case (its place among the problem's) may use on one profile's slices of one group.

    `excess_gib` is what it needs beyond the slice.
    """

    case: int
    model: int
    variant: int
    stage: int
    group: int
    profile: str
    usable: Usable
    excess_gib: float

    @property
    def point(self) -> Point:
        """The point as the request has it."""
        return self.usable.point

    @property
    def rate_rps(self) -> float:
        """Requests/s that a whole slice counts for."""
        return self.usable.rate_rps

    @property
    def cap_rps(self) -> float:
        """Most requests/s of one instance, whatever its share."""
        return self.usable.cap_rps

    @property
    def memory_gib(self) -> float:
        """GiB; 0 where it is unknown, and the instance then has its slice to itself."""
        return self.point.memory_gib or 0.0

    @property
    def alone(self) -> bool:
        """Whether nothing may stand beside it, since its memory is unknown."""
        return self.point.memory_gib is None


@dataclass(frozen=True, slots=True)
class Problem:
    """The request, ready to be formulated.

    `ties` are the request's co-locations, and `colocated` their members where layouts say who is present (see
    CandidateLayout), else none.
    `exact`: every way to run every model is among the cases (see cases.MOST_CAPS). `capacity_gib` is by the
    gpu_type of points and their profile.
    """

    request: PlanRequest
    groups: tuple[GpuGroup, ...]
    cases: tuple[VariantCase, ...]
    choices: tuple[Choice, ...]
    capacity_gib: Mapping[tuple[str, str], float]
    warnings: tuple[str, ...]
    elastic: bool
    elastic_latency: bool
    ties: Ties = field(default_factory=Ties)
    colocated: frozenset[int] = frozenset()
    exact: bool = True

    def members(self, choice: Choice) -> frozenset[int]:
        """The members of co-locations that an instance of this choice puts on its GPU."""
        return self.ties.of(choice.model, choice.variant, choice.stage)

    def size_gib(self, group: int, profile: str) -> float:
        """The memory of a slice; infinite where it is not known."""
        return self.capacity_gib[point_type(self.groups[group].type), profile]


def check_admissible(request: PlanRequest) -> None:
    """Raise InputFault where no model has a point that it may run on any GPU of the fleet, which says why of each."""
    problem = build_problem(request)
    if problem.choices:
        return
    told = " ".join(warning.replace(", so its throughput is 0", "") for warning in problem.warnings)
    raise InputFault(
        "models",
        f"none can run on any GPU of the fleet. {told.removesuffix('.')}",
        "Raise the limits of the models named, allow other layouts, or plan on GPUs that they have figures for.",
    )


def build_problem(
    request: PlanRequest, *, per_gpu: bool = False, elastic: bool = False, elastic_latency: bool = False
) -> Problem:
    """Expand a valid request.

    `per_gpu` gives each GPU a group of its own (concrete slices need it); otherwise equal GPUs
    are counted together, unless the loss of one must be survived. With whole slices a co-location
    splits every layout by the members that are present, and only where there would be too many of
    these, or where requests flow between members, every GPU stands alone. For the least relaxation
    `elastic` lets minima be given up, and
    `elastic_latency` lets limits grow, so it keeps points that only a limit forbids.
    """
    gpus = list_gpus(request.gpus)
    warnings = [*figure_warnings(request), *_profile_warnings(gpus)]
    if request.objective.survives and not must_survive(request):
        warnings.append("No model has a minimum, so a plan that survives the loss of a GPU is any plan.")
    ties = ties_of(request)
    # What stands on one GPU must be known: it is what is lost with it.
    per_gpu = per_gpu or must_survive(request) or (bool(ties.flows) and not elastic)
    present_sets: Sequence[frozenset[int]] | None = None
    if request.colocations and request.sharing == "exclusive" and not per_gpu:
        present_sets = colocation_sets(ties)
        per_gpu = present_sets is None
    capacity = _capacities(request, gpus)
    cases, notes, exact = _cases(request, gpus, capacity, elastic_latency=elastic_latency)
    warnings += notes
    by_node = not all(found.case.anywhere for found in cases)
    buckets = _buckets(gpus, by_cost=goal_of(request).by_cost, by_node=by_node)
    groups: list[GpuGroup] = []
    choices: list[Choice] = []
    for gpu, ids in buckets:
        useful = _useful(cases, gpu)
        layouts = _candidate_layouts(request, gpu, useful, capacity, cases)
        if present_sets is not None:
            layouts = tuple(
                replace(layout, present=present)
                for layout in layouts
                for present in present_sets
                if len(ties.needed(present)) <= sum(layout.useful.values())
            )
        kind = point_type(gpu.type)
        offered = [
            (place, cases[place].case, stage, name, usable, _excess(usable, capacity[kind, name]))
            for name in sorted({name for layout in layouts for name in layout.useful})
            for place, stage, usable in useful[name]
        ]
        for count, members in enumerate([(name,) for name in ids] if per_gpu else [ids]):
            twin = len(groups) - 1 if count else None
            number = len(groups)
            groups.append(GpuGroup(gpu.type, members, gpu.cost, layouts, twin))
            choices += [
                Choice(place, case.model, case.variant, stage, number, name, usable, excess)
                for place, case, stage, name, usable, excess in offered
            ]
    return Problem(
        request,
        tuple(groups),
        tuple(found.case for found in cases),
        tuple(choices),
        capacity,
        tuple(warnings),
        elastic,
        elastic_latency,
        ties,
        ties.numbers if present_sets is not None else frozenset(),
        exact,
    )


def _cases(
    request: PlanRequest,
    gpus: Sequence[FleetGpu],
    capacity: Mapping[tuple[str, str], float],
    *,
    elastic_latency: bool,
) -> tuple[list[FoundCase], list[str], bool]:
    """The cases of all models on this fleet, what was left out, and whether they are all that there are."""
    nodes = tuple(dict.fromkeys(gpu.node for gpu in gpus))
    cases: list[FoundCase] = []
    notes: list[str] = []
    exact = True
    for index in range(len(request.models)):
        found = admissible_cases(request, index, capacity, nodes, elastic=elastic_latency)
        cases += found.cases
        notes += found.notes
        exact = exact and found.exact
    return cases, notes, exact


def _capacities(request: PlanRequest, gpus: Sequence[FleetGpu]) -> dict[tuple[str, str], float]:
    """GiB by the gpu_type of points and their profile, of every profile that some layout offers."""
    alike = {replace(gpu, id="", node=None) for gpu in gpus}
    offered = {(gpu.type, name) for gpu in alike for name in offered_profiles(request, gpu)}
    return {(point_type(kind), name): _capacity(kind, name) for kind, name in offered}


def _buckets(
    gpus: Sequence[FleetGpu], *, by_cost: bool, by_node: bool
) -> list[tuple[FleetGpu, tuple[str, ...]]]:
    """Equal GPUs together, in the order of their first appearance."""
    found: dict[tuple[object, ...], list[FleetGpu]] = {}
    for gpu in gpus:
        key = (gpu.type, gpu.layouts, gpu.cost if by_cost else None, gpu.node if by_node else None)
        found.setdefault(key, []).append(gpu)
    return [(same[0], tuple(gpu.id for gpu in same)) for same in found.values()]


def _useful(cases: Sequence[FoundCase], gpu: FleetGpu) -> dict[str, list[tuple[int, int, Usable]]]:
    """By profile what may run on such a GPU: case, stage, point."""
    found: dict[str, list[tuple[int, int, Usable]]] = {}
    kind = point_type(gpu.type)
    for number, item in enumerate(cases):
        if not item.case.within(gpu.node):
            continue
        for stage, usables in enumerate(item.stages):
            for usable in usables:
                if usable.point.gpu_type == kind:
                    found.setdefault(usable.point.profile, []).append((number, stage, usable))
    return found


def _excess(usable: Usable, capacity_gib: float) -> float:
    return max(0.0, (usable.point.memory_gib or 0.0) - capacity_gib)


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
        if gpu_type(kind).divided == "cores":
            if any(profile.memory_gib is None for profile in gpu_type(kind).profiles):
                found.append(f"{kind}: its memory is not known, so none of its points is left out for it.")
        elif not plain_profiles(gpu_type(kind)):
            found.append(
                f"{kind}: no profile with a known memory, so its GPUs stay unused. Leave them whole: {kind}:whole."
            )
    return found


def _candidate_layouts(
    request: PlanRequest,
    gpu: FleetGpu,
    useful: Mapping[str, list[tuple[int, int, Usable]]],
    capacity: Mapping[tuple[str, str], float],
    cases: Sequence[FoundCase],
) -> tuple[CandidateLayout, ...]:
    """The layouts of a GPU reduced to slices that some model can use, without dominated ones."""
    found: dict[tuple[str, ...], CandidateLayout] = {}
    timed = {number for number, item in enumerate(cases) if item.case.levels}
    divided = gpu.layouts is None and gpu_type(gpu.type).divided == "cores"
    if divided:
        known = any(capacity[CPU, name] < float("inf") for name in useful)
        priced = request.objective.memory_violation_penalty is not None
        by_memory = known and (priced or request.sharing == "fractional")
        offered = divisions(gpu.type, sizes_worth_cutting(useful, timed, by_memory=by_memory))
    else:
        offered = offered_layouts(request, gpu)
    for profiles in offered:
        names = tuple(name for name in profiles if name in useful)
        counts = {name: names.count(name) for name in dict.fromkeys(names)}
        # Of layouts equal in their useful slices the one with the fewest idle slices stands for all.
        if names and (names not in found or len(profiles) < len(found[names].profiles)):
            found[names] = CandidateLayout(counts, profiles)
    if divided or len(found) > MOST_COMPARED:
        # Sizes that never pay have left a host's divisions already: comparing thousands would find no more.
        return tuple(found.values())
    sizes = {name: size for (kind, name), size in capacity.items() if kind == point_type(gpu.type)}
    kept = drop_dominated_layouts(list(found), useful, request, sizes, timed)
    return tuple(found[names] for names in kept)
