"""The outcome as the contract wants it, from what a search has found."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.planning.disaggregate import Bench, materialise
from torchsplit_core.planning.expand import Problem
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.planning.verify_objective import penalty
from torchsplit_core.values import (
    ObjectiveValue,
    PlannedGpu,
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
)


def plan_outcome(
    problem: Problem,
    bench: Bench,
    *,
    proven: int,
    settled: bool,
    bounds: Sequence[float | None],
    statistics: PlanStatistics,
) -> PlanOutcome:
    """A plan. `bounds` has a proven bound of the value of each stage (None: none known);
    `proven` counts the stages proven from the first on; `settled` is False where a tie-break is not proven.
    """
    request = problem.request
    gpus = materialise(problem, bench)
    models = planned_models(problem, bench)
    kind = request.objective.kind
    ranked = tuple(sorted(model.normalised for model in models))
    outcome = PlanOutcome(
        request_sha256=request_hash(request),
        status="feasible",
        objective=ObjectiveValue(kind, None, ranked),
        gpus=gpus,
        models=models,
        statistics=statistics,
        warnings=problem.warnings,
    )
    paid = penalty(request, outcome)
    levels = [value - paid for value in ranked]
    if kind == "weighted_sum":
        levels = [_weighted(request, models) - paid]
    elif kind == "min_gpus":
        levels = [_cost(problem, gpus) + paid]
    else:
        levels = levels[: len(levels) if kind == "leximin" else 1]
    stage = proven if proven < len(levels) else 0
    bound = bounds[stage] if stage < len(bounds) else None
    gap: float | None = None
    if bound is not None:
        # What is reached is also a bound's least possible value, up to rounding.
        bound = min(bound, levels[stage]) if kind == "min_gpus" else max(bound, levels[stage])
        if proven == len(levels):
            bound = levels[0]
        base = levels[stage] if kind == "min_gpus" else bound
        gap = abs(bound - levels[stage]) / abs(base) if base else 0.0
    optimal = proven == len(levels) and settled
    return PlanOutcome(
        request_sha256=outcome.request_sha256,
        status="optimal" if optimal else "feasible",
        objective=ObjectiveValue(kind, levels[0], ranked, bound, gap, proven),
        gpus=gpus,
        models=models,
        statistics=statistics,
        warnings=problem.warnings,
    )


def planned_models(problem: Problem, bench: Bench) -> tuple[PlannedModel, ...]:
    """What each model gets of the slots as they are filled."""
    request = problem.request
    cases = {(case.model, case.variant): case for case in problem.cases}
    found = []
    for index, spec in enumerate(request.models):
        seats = [(c, share) for slot in bench.slots for c, share in slot.tenants if c.model == index]
        if not seats:
            found.append(PlannedModel(spec.name, None, 0.0, 0.0, None))
            continue
        variant = seats[0][0].variant
        case = cases[index, variant]
        stages: list[list[tuple[float, float]]] = [[] for _ in range(case.stages)]
        for choice, share in seats:
            stages[choice.stage].append(
                (share * choice.point.throughput_rps, choice.point.latency_ms / share)
            )
        rate = min(sum(part for part, _ in stage) for stage in stages)
        latency = case.transfer_ms + sum(max(lat for _, lat in stage) for stage in stages)
        counted = min(rate, spec.demand_rps) if spec.cap_at_demand else rate
        name = spec.variants[variant].name
        found.append(PlannedModel(spec.name, name, rate, counted / (spec.weight * spec.demand_rps), latency))
    return tuple(found)


def no_plan(
    request: PlanRequest, status: str, statistics: PlanStatistics, warnings: Sequence[str] = ()
) -> PlanOutcome:
    """infeasible or timeout: no GPUs and no models, rather than zeros that look like a plan."""
    return PlanOutcome(
        request_sha256=request_hash(request),
        status="infeasible" if status == "infeasible" else "timeout",
        objective=ObjectiveValue(request.objective.kind, None),
        gpus=(),
        models=(),
        statistics=statistics,
        warnings=tuple(warnings),
    )


def _weighted(request: PlanRequest, models: Sequence[PlannedModel]) -> float:
    total = 0.0
    for spec, got in zip(request.models, models, strict=True):
        counted = min(got.throughput_rps, spec.demand_rps) if spec.cap_at_demand else got.throughput_rps
        total += spec.weight * counted
    return total


def _cost(problem: Problem, gpus: Sequence[PlannedGpu]) -> float:
    costs = {gpu_id: group.cost for group in problem.groups for gpu_id in group.gpu_ids}
    return sum(costs[gpu.id] for gpu in gpus if gpu.used)
