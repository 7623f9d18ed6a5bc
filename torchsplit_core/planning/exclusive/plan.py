"""Plans of whole slices: by patterns if they apply, else by the program of `formulation`; the better of both."""

from __future__ import annotations

import math
import time
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import takewhile

from torchsplit_core.planning.exclusive.colocated_assignment import assign_colocated
from torchsplit_core.planning.exclusive.filled import (
    FilledPlan,
    plan_fillings,
    raise_surviving,
    surviving_counts,
)
from torchsplit_core.planning.exclusive.gpu_counts import GpuCounts
from torchsplit_core.planning.exclusive.surviving import SurvivingPlan, plan_surviving
from torchsplit_core.planning.formulation.build import build
from torchsplit_core.planning.formulation.leximin import LevelsResult
from torchsplit_core.planning.formulation.model import Formulation
from torchsplit_core.planning.formulation.objectives import find_any_plan, first_level_value, solve_objective
from torchsplit_core.planning.formulation.solution import read_solution
from torchsplit_core.planning.outcome.assignment import (
    Assignment,
    assign_integer,
    build_planned_gpus,
)
from torchsplit_core.planning.outcome.build import build_planned_models
from torchsplit_core.planning.outcome.figures import level_values, separated_bytes
from torchsplit_core.planning.outcome.resilience import rates_after_worst_failure, survives_failure
from torchsplit_core.planning.outcome.spread_assignment import spread_further
from torchsplit_core.planning.patterns import PatternSolution, solve_patterns
from torchsplit_core.planning.patterns.colocated import ColocatedPlan, plan_colocated
from torchsplit_core.planning.problem.build import Problem, build_problem
from torchsplit_core.planning.request.objective import (
    goal_of,
    has_penalties,
    level_count,
    leximin_values,
    requires_resilience,
)
from torchsplit_core.planning.timing import OutOfTime, Stopwatch, build_deadline, partial_deadline
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.solver.pyomo_model import ModelSolution
from torchsplit_core.values import InternalFault, PlanRequest, Progress

FALLBACK_S = 1.0
"""Most seconds beyond the limit to find any plan at all, if the search found none."""

RELAXED_SHARE = 0.4
"""Part of the time for the plan without co-locations and penalties: its bound holds, and often the plan too."""

SURVIVOR_SHARE, FEW_SURVIVOR_SHARE, FIRST_SURVIVOR_SHARE = 0.9, 0.3, 0.5
"""Parts of the time for the plan without the loss of a GPU, where there are co-locations or the objective is a sum: of
many GPUs, and of few, which the program is for; and of that part for the first one."""

CHEAPEST_SHARE = 0.15
"""The same for the cheapest plan: its bound is far from what a small fleet needs to survive a loss."""

MAX_CHOICES = 20_000
"""Choices up to which the program is searched although a plan is known."""

MAX_SPREAD_CHOICES = 1_000
"""The same where a loss must be survived: every GPU is then a group of its own, with a row for each stage."""

COLOCATED_SHARE = 0.3
"""Part of the remaining time for assigning that plan to GPUs with the co-locations."""

MAX_LAYOUTS = 500
"""Layouts by the members present up to which a program with hard co-locations is solved in seconds."""

PROGRAM_SHARE = 0.35
"""Part of the remaining time for the program where questions follow: where it is small it has a good plan soon."""

SETS_SHARE = 0.5
"""Part of the remaining time for hard co-locations by patterns, if a program follows."""


@dataclass
class ExclusiveResult:
    """The best whole-slice plan as an assignment, or none; `levels` has the status and what is proven."""

    problem: Problem
    levels: LevelsResult
    assignment: Assignment | None = None
    details: dict[str, str | int | float] = field(default_factory=dict)


def plan_exclusive(problem: Problem, deadline: float, progress: Progress) -> ExclusiveResult:
    """The best whole-slice plan of a problem found before the deadline (time.perf_counter).

    `levels.seconds` includes searches whose plan was not taken.
    """
    watch = Stopwatch()
    best = _solve_surviving(problem, deadline, progress, watch)
    best.levels.seconds = watch.searched_s
    return best


def _solve_surviving(
    problem: Problem, deadline: float, progress: Progress, watch: Stopwatch
) -> ExclusiveResult:
    """The best plan; where it has to survive a loss with co-locations or for a sum, also that of the request without.

    Its bound holds, and it often survives: the program has a group for every GPU, and is too large for most fleets.
    """
    request = problem.request
    if not requires_resilience(request) or _is_spread(problem):
        return _solve(problem, deadline, progress, watch)
    few = len(problem.choices) <= MAX_SPREAD_CHOICES
    until = partial_deadline(deadline, FEW_SURVIVOR_SHARE if few else SURVIVOR_SHARE)
    objective = replace(request.objective, survives=0)
    relaxed = replace(_with_spare_capacity(request), objective=objective)
    without = _solve(build_problem(relaxed), partial_deadline(until, FIRST_SURVIVOR_SHARE), progress, watch)
    if without.levels.status == "infeasible":
        return ExclusiveResult(problem, without.levels)
    bounds = without.levels.bounds[:1]
    survivor = _made_to_survive(problem, without)
    while survivor is None and without.assignment is not None and time.perf_counter() < until:
        relaxed = _with_more(relaxed, request, without)
        without = _solve(build_problem(relaxed), until, progress, watch)
        without.levels = LevelsResult("feasible", bounds=list(bounds))
        survivor = _made_to_survive(problem, without)
    if survivor is not None and (survivor.levels.status == "optimal" or not few):
        return survivor
    best = _solve(problem, deadline, progress, watch)
    if survivor is not None and survivor.assignment is not None:
        goal, values = goal_of(request), _values(survivor.problem, survivor.assignment)
        if best.assignment is None or goal.better(values, _values(best.problem, best.assignment)):
            best = survivor
    if not best.levels.bounds:
        best.levels.bounds = list(bounds)
    return best


def _with_more(relaxed: PlanRequest, request: PlanRequest, result: ExclusiveResult) -> PlanRequest:
    """The request with a minimum above what it has for each model that would lose too much with a GPU.

    With what it needs beside its present instances it has some elsewhere.
    """
    assert result.assignment is not None
    left = rates_after_worst_failure(request, build_planned_gpus(request, result.assignment))
    planned = build_planned_models(result.problem, result.assignment)
    models = []
    for more, spec, after, model in zip(relaxed.models, request.models, left, planned, strict=True):
        least = spec.min_throughput_rps or 0.0
        short = after < least * (1 - TOLERANCE)
        models.append(replace(more, min_throughput_rps=model.throughput_rps + least) if short else more)
    return replace(relaxed, models=tuple(models))


def _made_to_survive(problem: Problem, without: ExclusiveResult) -> ExclusiveResult | None:
    """The plan, where it survives; spread further if need be, and then proven no further than its first bound."""
    if without.assignment is None:
        return None
    request, assignment, levels = problem.request, without.assignment, without.levels
    if not survives_failure(request, build_planned_gpus(request, assignment)):
        hard = problem.colocation_index.hard_members
        # A member may be a stage: then the whole model stays.
        fixed = {choice.model for choice in problem.choices if problem.colocation_members(choice) & hard}
        least = [spec.min_throughput_rps or 0.0 for spec in request.models]
        slices = [replace(slice_, tenants=copy(slice_.tenants)) for slice_ in assignment.slices]
        assignment = replace(
            assignment, slices=slices, layouts=copy(assignment.layouts), columns=copy(assignment.columns)
        )
        levels = LevelsResult("feasible", bounds=levels.bounds[:1])
        spread_further(without.problem, assignment, least, fixed)
    gpus = build_planned_gpus(request, assignment)
    if not survives_failure(request, gpus):
        return None
    known = replace(without.problem, request=request)
    problem.report(_values(known, assignment)[0], lambda: gpus)
    return ExclusiveResult(known, levels, assignment, without.details)


def _solve(problem: Problem, deadline: float, progress: Progress, watch: Stopwatch) -> ExclusiveResult:
    with watch.searching():
        pattern_solution = solve_patterns(problem, deadline, progress)
    if pattern_solution is not None:
        best = ExclusiveResult(problem, _levels_of_patterns(pattern_solution), details={"method": "patterns"})
        if pattern_solution.status in ("optimal", "feasible"):
            best.assignment = pattern_solution.assign(problem)
        return best
    with watch.searching():
        filled = plan_fillings(problem, deadline, progress)
    if filled is not None:
        return _result_of_filled(filled, "patterns, on filled GPUs")
    if not _has_few_layouts(problem):
        with watch.searching():
            colocated = plan_colocated(problem, deadline, progress)
        if colocated is not None:
            return _result_of_sets(colocated)
    value_bound = float("inf")
    from_patterns: ExclusiveResult | None = None
    goal, spread = goal_of(problem.request), _is_spread(problem)
    if goal.fair or spread:
        relaxed_solution = _solve_relaxed(problem, deadline, progress, watch)
        # From here on programs are written.
        deadline += watch.load_solver()
        if relaxed_solution is not None:
            free, relaxed, surviving = relaxed_solution
            if relaxed.status == "infeasible":
                return ExclusiveResult(problem, _levels_of_patterns(relaxed))
            if surviving is not None and surviving.assignment is not None:
                from_patterns = _spread_plan(problem, free, surviving, surviving.assignment)
            if relaxed.bounds and goal.fair:
                # Slightly above, so that rounding never cuts off a plan that reaches the bound.
                value_bound = relaxed.bounds[0] * (1 + TOLERANCE)
                # A small plan that is proven is dealt out by the program, which misses no way to do it.
                small = relaxed.status == "optimal" and len(problem.choices) <= MAX_SPREAD_CHOICES
                if small or from_patterns is None:
                    from_patterns = (
                        _restore_colocations(problem, free, relaxed, deadline, watch)
                        or from_patterns
                        or _without_soft_colocations(problem, free, relaxed)
                        or _plan_sets(problem, relaxed, deadline, watch)
                    )
                bound = None if from_patterns is None else next(iter(from_patterns.levels.bounds), None)
                if bound is not None:
                    value_bound = min(value_bound, bound * (1 + TOLERANCE))
            counts = surviving_counts(problem, free)
            if counts is not None and (from_patterns is None or from_patterns.levels.status != "optimal"):
                return _raise_surviving(
                    problem, free, counts, from_patterns, value_bound, deadline, progress, watch
                )
        if from_patterns is not None and (
            from_patterns.levels.status == "optimal"
            or len(problem.choices) > (MAX_SPREAD_CHOICES if spread else MAX_CHOICES)
        ):
            return from_patterns
    else:
        deadline += watch.load_solver()
        from_patterns = _solve_sum_uncolocated(
            problem, partial_deadline(deadline, RELAXED_SHARE), progress, watch
        )
    try:
        formulation = replace(_build_reporting(problem, deadline), value_bound=value_bound)
    except OutOfTime:
        if from_patterns is None and not goal_of(problem.request).fair:
            from_patterns = _solve_sum_uncolocated(problem, deadline, progress, watch)
        bounds: list[float | None] = [value_bound] if math.isfinite(value_bound) else []
        return from_patterns or ExclusiveResult(problem, LevelsResult(bounds=bounds))
    levels_result = solve_objective(formulation, deadline, progress=progress)
    watch.searched_s += levels_result.seconds
    if levels_result.status == "timeout" and from_patterns is None:
        levels_result = find_any_plan(formulation, max(FALLBACK_S, deadline - time.perf_counter()))
        watch.searched_s += levels_result.seconds
    from_program = ExclusiveResult(problem, levels_result, details={"stages": levels_result.levels})
    if levels_result.best is not None:
        from_program.assignment = assign_integer(formulation, levels_result.best)
    return from_program if from_patterns is None or _is_better(from_program, from_patterns) else from_patterns


def _result_of_filled(filled: FilledPlan, method: str) -> ExclusiveResult:
    levels = LevelsResult(filled.status, proven=filled.proven, bounds=list(filled.bounds))
    return ExclusiveResult(filled.problem, levels, filled.assignment, {"method": method})


def _raise_surviving(
    problem: Problem,
    free: Problem,
    counts: GpuCounts,
    known: ExclusiveResult | None,
    bound: float,
    deadline: float,
    progress: Progress,
    watch: Stopwatch,
) -> ExclusiveResult:
    """The plan that survives, raised by questions from the known one, or from that of the program on."""
    if known is None:
        until = partial_deadline(deadline, PROGRAM_SHARE)
        try:
            formulation = replace(_build_reporting(problem, until), value_bound=bound)
        except OutOfTime:
            pass
        else:
            first = solve_objective(formulation, until, progress=progress, level_one_only=True)
            watch.searched_s += first.seconds
            if first.status == "infeasible":
                return ExclusiveResult(problem, first)
            if first.bounds and first.bounds[0] is not None:
                bound = min(bound, first.bounds[0] * (1 + TOLERANCE))
            if first.best is not None:
                known = ExclusiveResult(problem, first, assign_integer(formulation, first.best))
    start = None if known is None else known.assignment
    if start is None:
        deadline = max(deadline, time.perf_counter() + FALLBACK_S)
    with watch.searching():
        raised = _result_of_filled(
            raise_surviving(problem, free, counts, start, bound, deadline, progress), "questions, GPU by GPU"
        )
    if raised.assignment is None and known is not None and raised.levels.status != "infeasible":
        # None of its options is that of a question.
        return known
    return raised


def _build_reporting(problem: Problem, deadline: float) -> Formulation:
    """The program, whose solver reports its better solutions on the way. Raises OutOfTime."""
    formulation = build(problem, "exclusive", until=build_deadline(deadline))

    def report(result: ModelSolution) -> None:
        solution = read_solution(formulation, result)
        value = first_level_value(formulation, solution)
        problem.report(
            value, lambda: build_planned_gpus(problem.request, assign_integer(formulation, solution))
        )

    return replace(formulation, on_solution=None if problem.on_incumbent is None else report)


def _levels_of_patterns(pattern_solution: PatternSolution) -> LevelsResult:
    return LevelsResult(
        pattern_solution.status, proven=pattern_solution.proven, bounds=list(pattern_solution.bounds)
    )


def _solve_relaxed(
    constrained: Problem, deadline: float, progress: Progress, watch: Stopwatch
) -> tuple[Problem, PatternSolution, SurvivingPlan | None] | None:
    """The plan without co-locations, penalties and the loss of a GPU: its bound holds for the request too.

    None if there is nothing to drop, or patterns do not apply. Where only the loss was dropped, also the plan that
    survives it.
    """
    request = constrained.request
    objective = request.objective
    penalty = None if objective.memory_violation_penalty is None else 0.0
    free = replace(objective, memory_violation_penalty=penalty, separation_weight=0.0, survives=0)
    relaxed_request = replace(_with_spare_capacity(request), colocations=(), objective=free)
    if relaxed_request == request:
        # Nothing was dropped, and patterns have been tried.
        return None
    until = partial_deadline(deadline, RELAXED_SHARE if goal_of(request).fair else CHEAPEST_SHARE)
    problem = build_problem(relaxed_request)
    if _is_spread(constrained):
        if len(constrained.choices) > MAX_SPREAD_CHOICES:
            until = deadline
        problem = replace(problem, on_incumbent=constrained.on_incumbent)
        with watch.searching():
            surviving = plan_surviving(request, problem, until, progress)
        return None if surviving is None else (problem, surviving.relaxed, surviving)
    if _only_soft_colocations(request) and not requires_resilience(request):
        problem = replace(problem, on_incumbent=constrained.on_incumbent)
    with watch.searching():
        pattern_solution = solve_patterns(problem, until, progress)
    return None if pattern_solution is None else (problem, pattern_solution, None)


def _is_spread(problem: Problem) -> bool:
    """Whether a plan by patterns has only to be spread over GPUs to answer the request."""
    request, goal = problem.request, goal_of(problem.request)
    pays = request.objective.memory_violation_penalty and any(
        choice.excess_gib > 0 for choice in problem.choices
    )
    return (
        requires_resilience(request) and (goal.fair or goal.by_cost) and not request.colocations and not pays
    )


def _spread_plan(
    problem: Problem, free: Problem, surviving: SurvivingPlan, assignment: Assignment
) -> ExclusiveResult:
    """The plan that survives, with what the first counts prove of it."""
    levels_result = _levels_of_patterns(surviving.relaxed)
    levels_result.values = list(surviving.values)
    reached = map(equal, levels_result.values, _values(free, surviving.relaxed.assign(free, complete=False)))
    same = sum(1 for _ in takewhile(bool, reached))
    if same < len(levels_result.values):
        levels_result.proven = min(levels_result.proven, same)
        levels_result.status = "feasible"
    return ExclusiveResult(problem, levels_result, assignment, {"method": "patterns, dealt out"})


def _with_spare_capacity(request: PlanRequest) -> PlanRequest:
    """The request with raised minima: of n GPUs one has 1/n of a model or more, and the rest must keep its minimum."""
    count = sum(entry.count for entry in request.gpus)
    if not requires_resilience(request) or count == 1:
        return request
    # Slightly less, so that rounding never rules out a plan that has just enough.
    factor = count / (count - 1) * (1 - TOLERANCE)
    return replace(
        request,
        models=tuple(
            replace(spec, min_throughput_rps=spec.min_throughput_rps * factor)
            if spec.min_throughput_rps
            else spec
            for spec in request.models
        ),
    )


def _restore_colocations(
    problem: Problem, free: Problem, relaxed: PatternSolution, deadline: float, watch: Stopwatch
) -> ExclusiveResult | None:
    """The uncolocated plan assigned so that it keeps co-locations; None if that fails or penalties count."""
    request = problem.request
    if has_penalties(request.objective):
        return None
    if not problem.colocated and not requires_resilience(request):
        # Too many co-locations to count.
        return None
    until = partial_deadline(deadline, COLOCATED_SHARE)
    try:
        formulation = build(problem, "exclusive", until=build_deadline(until))
    except OutOfTime:
        return None
    seconds = until - time.perf_counter()
    with watch.searching():
        colocated = assign_colocated(formulation, free, relaxed, seconds)
    if colocated is None:
        return None
    before = _levels(free, relaxed.assign(free, complete=False))
    after = _levels(problem, colocated.assignment)
    if not all(map(equal, before, after)):
        raise InternalFault("Dealing a plan out changed what its models get.")
    problem.report(after[0], lambda: build_planned_gpus(request, colocated.assignment))
    levels_result = _levels_of_patterns(relaxed)
    if colocated.separations > 0 and levels_result.status == "optimal":
        # The levels are proven, the fewest separations are not: other instances might be separated less.
        levels_result.status = "feasible"
    return ExclusiveResult(problem, levels_result, colocated.assignment, {"method": "patterns, dealt out"})


def _has_few_layouts(problem: Problem) -> bool:
    """Whether a program can distinguish layouts by the members present, if there are hard co-locations."""
    hard = any(item.mode == "hard" for item in problem.request.colocations)
    layouts = sum(len(group.layouts) for group in problem.groups)
    return not hard or (bool(problem.colocated) and layouts <= MAX_LAYOUTS)


def _plan_sets(
    problem: Problem, relaxed: PatternSolution, deadline: float, watch: Stopwatch
) -> ExclusiveResult | None:
    """The plan by co-located sets, proven as far as it reaches the proven levels of the plan without co-locations."""
    with watch.searching():
        colocated = plan_colocated(problem, partial_deadline(deadline, SETS_SHARE))
    if colocated is None:
        return None
    levels = _levels(colocated.problem, colocated.assignment)
    proven = 0
    while proven < relaxed.proven and equal(levels[proven], relaxed.bounds[proven]):
        proven += 1
    if proven:
        return _result_of_sets(replace(colocated, bounds=relaxed.bounds, proven=proven))
    bounds = (min(colocated.bounds[0], relaxed.bounds[0]), *colocated.bounds[1:])
    return _result_of_sets(replace(colocated, bounds=bounds))


def _result_of_sets(colocated: ColocatedPlan) -> ExclusiveResult:
    request = colocated.problem.request
    only_hard = all(item.mode == "hard" for item in request.colocations)
    optimal = only_hard and colocated.proven == level_count(request)
    levels_result = LevelsResult(
        "optimal" if optimal else "feasible", proven=colocated.proven, bounds=list(colocated.bounds)
    )
    return ExclusiveResult(
        colocated.problem, levels_result, colocated.assignment, {"method": "patterns, with co-located sets"}
    )


def _without_soft_colocations(
    problem: Problem, free: Problem, relaxed: PatternSolution
) -> ExclusiveResult | None:
    """The uncolocated plan unchanged, if only soft co-locations were dropped: they do not change its levels."""
    request = problem.request
    if (
        has_penalties(request.objective)
        or requires_resilience(request)
        or not _only_soft_colocations(request)
    ):
        return None
    levels_result = _levels_of_patterns(relaxed)
    levels_result.status = "feasible"
    uncolocated = replace(free, request=request, colocation_index=problem.colocation_index)
    return ExclusiveResult(uncolocated, levels_result, relaxed.assign(free), {"method": "patterns"})


def _solve_sum_uncolocated(
    problem: Problem, until: float, progress: Progress, watch: Stopwatch
) -> ExclusiveResult | None:
    """The same for a sum: the best plan found by `until` without soft co-locations that only rank plans."""
    request = problem.request
    if has_penalties(request.objective) or not _only_soft_colocations(request):
        return None
    free = build_problem(replace(request, colocations=()))
    try:
        formulation = _build_reporting(replace(free, on_incumbent=problem.on_incumbent), until)
    except OutOfTime:
        return None
    levels_result = solve_objective(formulation, until, progress=progress)
    watch.searched_s += levels_result.seconds
    if levels_result.best is None:
        return None
    levels_result.status = "feasible"
    uncolocated = replace(free, request=request, colocation_index=problem.colocation_index)
    return ExclusiveResult(
        uncolocated,
        levels_result,
        assign_integer(formulation, levels_result.best),
        {"stages": levels_result.levels},
    )


def _only_soft_colocations(request: PlanRequest) -> bool:
    """Whether there are co-locations, none of them hard."""
    return bool(request.colocations) and all(item.mode == "soft" for item in request.colocations)


def _is_better(from_program: ExclusiveResult, from_patterns: ExclusiveResult) -> bool:
    """Whether the program's plan is better: proven, a higher value, or an equal one with fewer bytes separated."""
    if (
        from_program.levels.status == "optimal"
        or from_program.assignment is None
        or from_patterns.assignment is None
    ):
        return from_program.assignment is not None
    goal = goal_of(from_program.problem.request)
    program_levels, pattern_levels = from_program.levels.values[:1], from_patterns.levels.values[:1]
    if goal.fair:
        count = level_count(from_program.problem.request)
        program_levels = _levels(from_program.problem, from_program.assignment)[:count]
        pattern_levels = _levels(from_patterns.problem, from_patterns.assignment)[:count]
    if all(map(equal, program_levels, pattern_levels)):
        return _separated_bytes(from_program.problem, from_program.assignment) < _separated_bytes(
            from_patterns.problem, from_patterns.assignment
        )
    return goal.better(program_levels, pattern_levels)


def _separated_bytes(problem: Problem, assignment: Assignment) -> float:
    """The bytes of soft co-locations that are separated."""
    return separated_bytes(problem.request, build_planned_gpus(problem.request, assignment))


def _values(problem: Problem, assignment: Assignment) -> list[float]:
    """The value at every level of the objective."""
    gpus, models = build_planned_gpus(problem.request, assignment), build_planned_models(problem, assignment)
    return list(level_values(problem.request, gpus, models))


def _levels(problem: Problem, assignment: Assignment) -> list[float]:
    return leximin_values(
        problem.request, [model.throughput_rps for model in build_planned_models(problem, assignment)]
    )
