"""Builds the PlanOutcome of a search result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.outcome.assignment import Assignment, build_planned_gpus
from torchsplit_core.planning.outcome.cost import with_costs
from torchsplit_core.planning.outcome.figures import (
    level_values,
    planned_model,
    routed_bytes,
    unserved_model,
)
from torchsplit_core.planning.outcome.instances import RunningInstance
from torchsplit_core.planning.outcome.warnings import plan_warnings
from torchsplit_core.planning.problem.build import Problem
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import build_objective_value
from torchsplit_core.planning.tolerance import TOLERANCE
from torchsplit_core.values import ObjectiveValue, PlannedModel, PlanOutcome, PlanRequest, PlanStatistics
from torchsplit_core.values.status import Unsolved


def build_plan_outcome(
    problem: Problem,
    assignment: Assignment,
    *,
    proven: int,
    tie_break_proven: bool,
    bounds: Sequence[float | None],
    statistics: PlanStatistics,
) -> PlanOutcome:
    """The plan's outcome. `proven` counts the levels that are proven, from the first on; `bounds` has a proven bound of
    each level (None: none known); `tie_break_proven` is False if a tie-break is not proven.
    """
    request = problem.request
    gpus = build_planned_gpus(request, assignment)
    models = build_planned_models(problem, assignment)
    levels = level_values(request, gpus, models)
    stage = proven if proven < len(levels) else 0
    bound = bounds[stage] if stage < len(bounds) else None
    objective = build_objective_value(
        request, levels, (model.normalised for model in models), bound=bound, proven=proven
    )
    optimal = proven == len(levels) and tie_break_proven
    outcome = PlanOutcome(
        request_sha256=request_hash(request),
        status="optimal" if optimal else "feasible",
        objective=replace(objective, routed=routed_bytes(request, gpus)),
        gpus=gpus,
        models=models,
        statistics=statistics,
        warnings=(*problem.warnings, *plan_warnings(request, gpus)),
    )
    return with_costs(request, outcome)


def build_planned_models(problem: Problem, assignment: Assignment) -> tuple[PlannedModel, ...]:
    """The figures of each model, from the tenants of its slices."""
    nodes = {gpu.id: gpu.node for gpu in list_gpus(problem.request.gpus)}
    models = []
    for index, spec in enumerate(problem.request.models):
        instances = [
            (choice, RunningInstance(share, choice.point, nodes[gpu]))
            for slice_ in assignment.slices
            for choice, share in slice_.tenants
            if choice.model == index
            for gpu in assignment.together.get(slice_.gpu_id, (slice_.gpu_id,))
        ]
        if not instances:
            models.append(unserved_model(spec))
            continue
        variant = spec.variants[instances[0][0].variant]
        stages: list[list[RunningInstance]] = [[] for _ in variant.stages]
        for choice, instance in instances:
            stages[choice.stage].append(instance)
        models.append(planned_model(problem.request, spec, variant, stages))
    return tuple(models)


def keeps_minima(problem: Problem, models: Sequence[PlannedModel]) -> bool:
    """Whether every model has its minimum; the search for shares ignores the limit that a link sets to an instance."""
    return all(
        planned.throughput_rps >= (spec.min_throughput_rps or 0.0) * (1 - TOLERANCE)
        for spec, planned in zip(problem.request.models, models, strict=True)
    )


def no_plan(
    request: PlanRequest, status: Unsolved, statistics: PlanStatistics, warnings: Sequence[str] = ()
) -> PlanOutcome:
    """An outcome without GPUs and models, since zeros would look like a plan."""
    return PlanOutcome(
        request_sha256=request_hash(request),
        status=status,
        objective=ObjectiveValue(request.objective.kind, None),
        gpus=(),
        models=(),
        statistics=statistics,
        warnings=tuple(warnings),
    )
