"""Whole slices: patterns where they apply, the program of formulation.py elsewhere, the better of both."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from torchsplit_core.planning.exclusive.colocate import deal
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import Search
from torchsplit_core.planning.formulation.objectives import any_plan, search
from torchsplit_core.planning.outcome.assignment import Assignment, assign_counts, assign_integer, materialise
from torchsplit_core.planning.outcome.build import planned_models
from torchsplit_core.planning.outcome.figures import separated_bytes
from torchsplit_core.planning.patterns import Counted, count_patterns
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import (
    goal_of,
    level_count,
    must_survive,
    pays_penalties,
    ranked,
)
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, building_until, part_of
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.values import InternalFault, PlanRequest, Progress

FALLBACK_S = 1.0
"""Most seconds beyond the limit to find any plan at all, where the search has found none."""

TIES_PART = 0.4
"""Part of the time for the plan without co-locations and penalties: the bound, and often the plan."""

LARGEST = 20_000
"""Choices up to which the program is searched where a plan is there already."""

DEAL_PART = 0.3
"""Part of what is then left for dealing that plan out."""


@dataclass
class ExclusiveSearch:
    """The best whole-slice plan as an assignment, or none: `found` says how it ended and what is proven."""

    problem: Problem
    found: Search
    assignment: Assignment | None = None
    details: dict[str, str | int | float] = field(default_factory=dict)


def search_exclusive(problem: Problem, deadline: float, progress: Progress) -> ExclusiveSearch:
    """The best whole-slice plan of a problem found before the deadline (time.perf_counter).

    `found.seconds` has the time of every search on the way, also of those whose plan was not taken.
    """
    watch = Stopwatch()
    best = _best_of_both(problem, deadline, progress, watch)
    best.found.seconds = watch.searched_s
    return best


def _best_of_both(problem: Problem, deadline: float, progress: Progress, watch: Stopwatch) -> ExclusiveSearch:
    with watch.searching():
        counted = count_patterns(problem, deadline, progress)
    if counted is not None:
        best = ExclusiveSearch(problem, _search_of(counted), details={"method": "patterns"})
        if counted.status in ("optimal", "feasible"):
            best.assignment = _assigned(problem, counted)
        return best
    # What follows writes programs.
    deadline += watch.loading()
    top = float("inf")
    dealt: ExclusiveSearch | None = None
    if goal_of(problem.request).fair:
        loosened = _without_ties(problem.request, deadline, progress, watch)
        if loosened is not None:
            free, eased = loosened
            if eased.status == "infeasible":
                return ExclusiveSearch(problem, _search_of(eased))
            if eased.bounds:
                # A little above, so that rounding never cuts off a plan that reaches the bound.
                top = eased.bounds[0] * (1 + TOLERANCE)
                dealt = _dealt(problem, free, eased, deadline, watch) or _untied(problem, free, eased)
        if dealt is not None and (dealt.found.status == "optimal" or len(problem.choices) > LARGEST):
            return dealt
    else:
        dealt = _sum_untied(problem, part_of(deadline, TIES_PART), progress, watch)
    try:
        built = replace(build(problem, "exclusive", until=building_until(deadline)), top=top)
    except OutOfTime:
        if dealt is None and not goal_of(problem.request).fair:
            dealt = _sum_untied(problem, deadline, progress, watch)
        return dealt or ExclusiveSearch(problem, Search())
    found = search(built, deadline, progress=progress)
    watch.searched_s += found.seconds
    if found.status == "timeout" and dealt is None:
        found = any_plan(built, FALLBACK_S)
        watch.searched_s += found.seconds
    own = ExclusiveSearch(problem, found, details={"stages": found.levels})
    if found.best is not None:
        own.assignment = assign_integer(built, found.best)
    return own if dealt is None or _better(own, dealt) else dealt


def _search_of(counted: Counted) -> Search:
    return Search(counted.status, proven=counted.proven, bounds=list(counted.bounds))


def _without_ties(
    request: PlanRequest, deadline: float, progress: Progress, watch: Stopwatch
) -> tuple[Problem, Counted] | None:
    """The plan with co-locations, penalties and the loss of a GPU dropped: whatever bounds it bounds the request too.

    None where there is nothing to drop, or patterns do not apply.
    """
    objective = request.objective
    penalty = None if objective.memory_violation_penalty is None else 0.0
    free = replace(objective, memory_violation_penalty=penalty, separation_weight=0.0, survives=0)
    loose = replace(_with_spare(request), colocations=(), objective=free)
    if loose == request:
        # There was nothing to drop, and patterns have been tried.
        return None
    until = part_of(deadline, TIES_PART)
    problem = build_problem(loose)
    with watch.searching():
        counted = count_patterns(problem, until, progress)
    return None if counted is None else (problem, counted)


def _with_spare(request: PlanRequest) -> PlanRequest:
    """What a plan that survives a loss has at least: of n GPUs one has 1/n of a model or more, the rest its minimum."""
    count = sum(entry.count for entry in request.gpus)
    if not must_survive(request) or count == 1:
        return request
    # A little less, so that rounding never rules a plan out that has just enough.
    more = count / (count - 1) * (1 - TOLERANCE)
    return replace(
        request,
        models=tuple(
            replace(spec, min_throughput_rps=spec.min_throughput_rps * more)
            if spec.min_throughput_rps
            else spec
            for spec in request.models
        ),
    )


def _dealt(
    problem: Problem, free: Problem, eased: Counted, deadline: float, watch: Stopwatch
) -> ExclusiveSearch | None:
    """The plan without ties, dealt out so that it keeps them; None where it cannot be, or pays a penalty."""
    request = problem.request
    if pays_penalties(request.objective):
        return None
    if not problem.colocated and not must_survive(request):
        # Too many ties to count.
        return None
    until = part_of(deadline, DEAL_PART)
    try:
        built = build(problem, "exclusive", until=building_until(until))
    except OutOfTime:
        return None
    seconds = until - time.perf_counter()
    with watch.searching():
        dealt = deal(built, free, eased, seconds)
    if dealt is None:
        return None
    before, after = _levels(free, _assigned(free, eased)), _levels(problem, dealt.assignment)
    if not all(map(equal, before, after)):
        raise InternalFault("Dealing a plan out changed what its models get.")
    found = _search_of(eased)
    if dealt.separations > 0 and found.status == "optimal":
        # The levels are proven, the fewest separations are not: other instances might be torn less.
        found.status = "feasible"
    return ExclusiveSearch(problem, found, dealt.assignment, {"method": "patterns, dealt out"})


def _untied(problem: Problem, free: Problem, eased: Counted) -> ExclusiveSearch | None:
    """The plan without ties as it stands, where nothing but soft ties was dropped: its levels do not depend on them."""
    request = problem.request
    if pays_penalties(request.objective) or must_survive(request) or not _soft_alone(request):
        return None
    found = _search_of(eased)
    found.status = "feasible"
    bare = replace(free, request=request, ties=problem.ties)
    return ExclusiveSearch(bare, found, _assigned(free, eased), {"method": "patterns"})


def _sum_untied(
    problem: Problem, until: float, progress: Progress, watch: Stopwatch
) -> ExclusiveSearch | None:
    """The same for a sum: the best plan until then without soft ties that only rank plans, and its bound."""
    request = problem.request
    if pays_penalties(request.objective) or not _soft_alone(request):
        return None
    free = build_problem(replace(request, colocations=()))
    try:
        built = build(free, "exclusive", until=building_until(until))
    except OutOfTime:
        return None
    found = search(built, until, progress=progress)
    watch.searched_s += found.seconds
    if found.best is None:
        return None
    found.status = "feasible"
    bare = replace(free, request=request, ties=problem.ties)
    return ExclusiveSearch(bare, found, assign_integer(built, found.best), {"stages": found.levels})


def _soft_alone(request: PlanRequest) -> bool:
    """Whether there are co-locations, none of them hard."""
    return bool(request.colocations) and all(item.mode == "soft" for item in request.colocations)


def _better(own: ExclusiveSearch, dealt: ExclusiveSearch) -> bool:
    """Whether the program's plan beats the dealt one: proven, worth more, or as much with less torn apart."""
    if own.found.status == "optimal" or own.assignment is None or dealt.assignment is None:
        return own.assignment is not None
    goal = goal_of(own.problem.request)
    mine, other = own.found.values[:1], dealt.found.values[:1]
    if goal.fair:
        count = level_count(own.problem.request)
        mine = _levels(own.problem, own.assignment)[:count]
        other = _levels(dealt.problem, dealt.assignment)[:count]
    if all(map(equal, mine, other)):
        return _torn(own.problem, own.assignment) < _torn(dealt.problem, dealt.assignment)
    return goal.better(mine, other)


def _torn(problem: Problem, assignment: Assignment) -> float:
    """The bytes of soft co-locations torn apart."""
    return separated_bytes(problem.request, materialise(problem.request, assignment))


def _assigned(problem: Problem, counted: Counted) -> Assignment:
    amounts = [(problem.choices[index], counted.amounts[index]) for index in sorted(counted.amounts)]
    return assign_counts(problem, counted.layouts, amounts)


def _levels(problem: Problem, assignment: Assignment) -> list[float]:
    return ranked(problem.request, [model.throughput_rps for model in planned_models(problem, assignment)])
