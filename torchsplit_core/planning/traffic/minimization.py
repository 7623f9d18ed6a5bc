"""The fewest separated bytes among plans as good as a known one.

A routed co-location only ranks plans of equal objective. So the request is planned without ranking co-locations, by the
quickest method, and that plan is the start. Slices then exchange tenants if fewer bytes leave a GPU; then a program,
with a group per GPU, fixes every level of the objective and minimises the bytes. Its bound holds for every plan of
these levels; the result is the best of the three plans, so it never sends more than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.objectives import minimize_traffic, traffic_unit
from torchsplit_core.planning.formulation.solution import read_solution
from torchsplit_core.planning.fractional.fixed_layouts import (
    MAX_EXACT_TENANCIES,
    MAX_FIXED_TENANCIES,
    planned_layouts,
    tenancy_count,
    with_fixed_layouts,
)
from torchsplit_core.planning.outcome.assignment import assign_integer, assign_shares, build_planned_gpus
from torchsplit_core.planning.outcome.build import keeps_minima
from torchsplit_core.planning.outcome.cost import with_costs
from torchsplit_core.planning.outcome.figures import (
    cross_gpu_bytes,
    level_values,
    planned_models_of,
    separated_bytes,
    separation_traffic,
)
from torchsplit_core.planning.outcome.resilience import survives_failure
from torchsplit_core.planning.outcome.warnings import plan_warnings
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.colocation_index import index_colocations
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import build_objective_value
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, build_deadline, partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.planning.traffic.pairwise_exchange import exchange_tenants
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest, RoutedBytes

MAX_CHOICES = 20_000
"""Choices up to which the program with a group per GPU is solved."""

EXCHANGE_PART = 0.2
"""Most of the time for exchanging tenants; the program gets the rest."""


@dataclass(frozen=True)
class _TrafficResult:
    """GPUs (None: none better) and a proven bound of the separated bytes of all plans with these levels."""

    gpus: tuple[PlannedGpu, ...] | None = None
    bound: float = 0.0


def ranks_by_traffic(request: PlanRequest) -> bool:
    """Whether routed co-locations rank plans of equal objective without being part of it."""
    return request.objective.separation_weight == 0 and any(
        colocation.mode == "routed" for colocation in request.colocations
    )


def without_soft_colocations(request: PlanRequest) -> PlanRequest:
    """The request without the co-locations that only rank plans: routed and soft ones."""
    return replace(
        request,
        colocations=tuple(colocation for colocation in request.colocations if colocation.mode == "hard"),
    )


def minimize_cross_gpu_traffic(
    request: PlanRequest, incumbent: PlanOutcome, deadline: float, watch: Stopwatch
) -> PlanOutcome:
    """The outcome of `request`, no worse than `incumbent` (of the request without ranking), not verified yet.

    `routed` has the bytes and their bound; the status is optimal only if these are equal and `incumbent` is optimal.
    """
    with watch.searching():
        best = exchange_tenants(request, incumbent.gpus, partial_deadline(deadline, EXCHANGE_PART))
    apart, bound = separation_traffic(request, best), 0.0
    # Any separation of a soft pair is real, however few its bytes are beside those of a routed pair.
    if separated_bytes(request, best) or cross_gpu_bytes(request, best) > _rounding_bytes(request):
        result = _solve_program(request, incumbent, deadline, watch)
        bound = result.bound
        # Of equal plans take the program's: it does not depend on how far the exchanges came.
        if result.gpus is not None and separation_traffic(request, result.gpus) <= apart:
            best = result.gpus
    return _build_outcome(request, incumbent, best, bound)


def _solve_program(
    request: PlanRequest, incumbent: PlanOutcome, deadline: float, watch: Stopwatch
) -> _TrafficResult:
    """The program's result; empty if it is too large or not built in time."""
    problem = build_problem(request, per_gpu=True)
    fractional, free = request.sharing == "fractional", True
    if fractional and tenancy_count(problem) > MAX_EXACT_TENANCIES:
        # A proof with fixed layouts says nothing about other layouts.
        problem, free = with_fixed_layouts(request, planned_layouts(incumbent.gpus)), False
    if tenancy_count(problem) > MAX_FIXED_TENANCIES if fractional else len(problem.choices) > MAX_CHOICES:
        return _TrafficResult()
    levels = level_values(request, incumbent.gpus, incumbent.models)
    deadline += watch.load_solver()
    try:
        formulation = build(
            problem, "concrete" if fractional else "exclusive", until=build_deadline(deadline)
        )
        result = minimize_traffic(formulation, levels, deadline)
    except OutOfTime:
        return _TrafficResult()
    watch.searched_s += result.seconds
    bound = max(0.0, result.bound or 0.0) * traffic_unit(formulation) if free else 0.0
    if result.status not in ("optimal", "feasible"):
        return _TrafficResult(bound=bound)
    solution = read_solution(formulation, result)
    assignment = assign_shares(formulation, solution) if fractional else assign_integer(formulation, solution)
    gpus = build_planned_gpus(request, assignment)
    return _TrafficResult(gpus if _keeps_levels(problem, levels, gpus) else None, bound)


def _keeps_levels(problem: Problem, levels: Sequence[float], gpus: tuple[PlannedGpu, ...]) -> bool:
    """Whether these GPUs reach the levels and minima, which the solver's rounding may slightly miss."""
    request = problem.request
    models = planned_models_of(request, gpus)
    reached = zip(level_values(request, gpus, models), levels, strict=True)
    levels_kept = all(equal(value, level) for value, level in reached) and keeps_minima(problem, models)
    return levels_kept and survives_failure(request, gpus)


def _build_outcome(
    request: PlanRequest, incumbent: PlanOutcome, gpus: tuple[PlannedGpu, ...], bound: float
) -> PlanOutcome:
    before = plan_warnings(request, incumbent.gpus)
    other_warnings = (warning for warning in incumbent.warnings if warning not in before)
    models = planned_models_of(request, gpus)
    levels = level_values(request, gpus, models)
    objective = build_objective_value(
        request,
        levels,
        (model.normalised for model in models),
        bound=incumbent.objective.bound,
        proven=incumbent.objective.proven_levels,
    )
    sent, apart = cross_gpu_bytes(request, gpus), separation_traffic(request, gpus)
    settled = apart <= bound + _rounding_bytes(request)
    routed = RoutedBytes(sent)
    if not index_colocations(request).soft:
        least = sent if settled else min(bound, sent)
        routed = RoutedBytes(sent, least, (sent - least) / sent if sent else 0.0)
    elif settled:
        routed = RoutedBytes(sent, sent, 0.0)
    outcome = replace(
        incumbent,
        request_sha256=request_hash(request),
        status="optimal" if settled and incumbent.status == "optimal" else "feasible",
        objective=replace(objective, routed=routed),
        gpus=gpus,
        models=models,
        warnings=(*other_warnings, *plan_warnings(request, gpus)),
    )
    return with_costs(request, outcome)


def _rounding_bytes(request: PlanRequest) -> float:
    """Smaller amounts of bytes are none: the rest of a demand is a difference and has the demand's rounding error."""
    return TOLERANCE * sum(flow.bytes_per_s for flow in index_colocations(request).flows)
