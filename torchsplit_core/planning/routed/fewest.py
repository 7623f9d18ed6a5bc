"""The fewest bytes apart among plans that are as good as one that is known.

A routed co-location ranks plans of equal objective only. So the request is planned without co-locations that rank,
by whatever proves its objective quickest, and that plan is the first here. Slices change their tenants where fewer
bytes then leave a GPU; then one program, GPU by GPU, holds every level of the objective and minimises the bytes. What
it proves bounds every plan of these levels; the best of the three is the plan, so none sends more than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.objectives import apart_unit, least_apart
from torchsplit_core.planning.formulation.solution import read_solution
from torchsplit_core.planning.fractional.plan import (
    LARGEST_EXACT,
    LARGEST_FIXED,
    tenancies,
    with_layouts_held,
)
from torchsplit_core.planning.outcome.assignment import assign_integer, assign_shares, materialise
from torchsplit_core.planning.outcome.build import keeps_minima
from torchsplit_core.planning.outcome.figures import apart_bytes, leaving_bytes, level_values, model_figures
from torchsplit_core.planning.outcome.losses import survives
from torchsplit_core.planning.outcome.money import with_money
from torchsplit_core.planning.outcome.warnings import plan_warnings
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import value_reached
from torchsplit_core.planning.request.ties import ties_of
from torchsplit_core.planning.routed.exchange import exchanged
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, building_until, part_of
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.values import PlannedGpu, PlanOutcome, PlanRequest, RoutedBytes

LARGEST = 20_000
"""Choices up to which whole slices are searched GPU by GPU."""

EXCHANGE_PART = 0.2
"""Most of the time that tenants have to change places; the program has the rest."""


@dataclass(frozen=True)
class _Found:
    """GPUs (None: none better) and a bound of the bytes apart, proven of all plans of the levels held."""

    gpus: tuple[PlannedGpu, ...] | None = None
    bound: float = 0.0


def ranks_flows(request: PlanRequest) -> bool:
    """Whether routed co-locations rank plans of equal objective, and are not paid for in it."""
    return request.objective.separation_weight == 0 and any(
        one.mode == "routed" for one in request.colocations
    )


def without_ranks(request: PlanRequest) -> PlanRequest:
    """The request without the co-locations that only rank plans: routed and soft ones."""
    return replace(request, colocations=tuple(one for one in request.colocations if one.mode == "hard"))


def fewest_bytes(request: PlanRequest, known: PlanOutcome, deadline: float, watch: Stopwatch) -> PlanOutcome:
    """The outcome of `request`, of a plan no worse than `known` (of the request without ranks), not verified yet.

    `routed` has what it sends and a bound; the status is optimal only where both are one, and `known` is that.
    """
    with watch.searching():
        best = exchanged(request, known.gpus, part_of(deadline, EXCHANGE_PART))
    apart, bound = apart_bytes(request, best), 0.0
    if apart > _rounding(request):
        found = _searched(request, known, deadline, watch)
        bound = found.bound
        # Of equal plans the program's: it does not hang on how far the exchanges came.
        if found.gpus is not None and apart_bytes(request, found.gpus) <= apart:
            best = found.gpus
    return _told(request, known, best, bound)


def _searched(request: PlanRequest, known: PlanOutcome, deadline: float, watch: Stopwatch) -> _Found:
    """What the program finds and proves; nothing where it is too large or not built in time."""
    problem = build_problem(request, per_gpu=True)
    shared, free = request.sharing == "fractional", True
    if shared and tenancies(problem) > LARGEST_EXACT:
        # A proof under fixed layouts says nothing about other layouts.
        problem, free = with_layouts_held(request, known.gpus), False
    if tenancies(problem) > LARGEST_FIXED if shared else len(problem.choices) > LARGEST:
        return _Found()
    levels = level_values(request, known.gpus, known.models)
    deadline += watch.loading()
    try:
        built = build(problem, "concrete" if shared else "exclusive", until=building_until(deadline))
        answer = least_apart(built, levels, deadline)
    except OutOfTime:
        return _Found()
    watch.searched_s += answer.seconds
    bound = max(0.0, answer.bound or 0.0) * apart_unit(built) if free else 0.0
    if answer.status not in ("optimal", "feasible"):
        return _Found(bound=bound)
    solution = read_solution(built, answer)
    assignment = assign_shares(built, solution) if shared else assign_integer(built, solution)
    gpus = materialise(request, assignment)
    return _Found(gpus if _as_good(problem, levels, gpus) else None, bound)


def _as_good(problem: Problem, levels: Sequence[float], gpus: tuple[PlannedGpu, ...]) -> bool:
    """Whether these GPUs reach the levels and the minima: a solver's rounding may miss them by a little."""
    request = problem.request
    models = model_figures(request, gpus)
    reached = zip(level_values(request, gpus, models), levels, strict=True)
    kept = all(equal(mine, level) for mine, level in reached) and keeps_minima(problem, models)
    return kept and survives(request, gpus)


def _told(
    request: PlanRequest, known: PlanOutcome, gpus: tuple[PlannedGpu, ...], bound: float
) -> PlanOutcome:
    before = plan_warnings(request, known.gpus)
    kept = (one for one in known.warnings if one not in before)
    models = model_figures(request, gpus)
    levels = level_values(request, gpus, models)
    told = value_reached(
        request,
        levels,
        (model.normalised for model in models),
        bound=known.objective.bound,
        proven=known.objective.proven_levels,
    )
    sent, apart = leaving_bytes(request, gpus), apart_bytes(request, gpus)
    settled = apart <= bound + _rounding(request)
    routed = RoutedBytes(sent)
    if not ties_of(request).soft:
        least = sent if settled else min(bound, sent)
        routed = RoutedBytes(sent, least, (sent - least) / sent if sent else 0.0)
    elif settled:
        routed = RoutedBytes(sent, sent, 0.0)
    outcome = replace(
        known,
        request_sha256=request_hash(request),
        status="optimal" if settled and known.status == "optimal" else "feasible",
        objective=replace(told, routed=routed),
        gpus=gpus,
        models=models,
        warnings=(*kept, *plan_warnings(request, gpus)),
    )
    return with_money(request, outcome)


def _rounding(request: PlanRequest) -> float:
    """Bytes that are none: what is left of a demand is a difference, so its rounding is that of the demand."""
    return TOLERANCE * sum(flow.bytes_per_s for flow in ties_of(request).flows)
