"""Plans a request with LLMs so that all engines of each model together keep its limits when they are simulated.

1. Give every LLM its engines as points (`points`), each at the largest rate that it carries alone.
2. Plan. The bound of this plan holds for every plan: what engines carry together can only rule plans out.
3. Simulate the engines of each LLM at the load that it gets. A request goes to the engine with the fewest requests, so
   a slow engine beside a quick one may break a limit that each keeps alone. A model whose engines do is planned again
   with engines that are more alike, and without a kind whose engines break a limit among themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchsplit_core.engine_plans.engine_check import CheckedEngines, check_engines
from torchsplit_core.engine_plans.points import WHOLE, engine_notes, unreachable_limits, with_engine_points
from torchsplit_core.latency_slo.slo_planner import objective_within
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.request.objective import level_count
from torchsplit_core.planning.verification.outcome import verify
from torchsplit_core.values import (
    CPU,
    InputFault,
    InternalFault,
    PlanModel,
    PlannedGpu,
    PlannedSlice,
    PlanOutcome,
    PlanRequest,
    PlanStatistics,
    Point,
    Progress,
    Stage,
    Variant,
    ignore_progress,
    point_type,
    tenants_on,
)
from torchsplit_core.values.status import SolveStatus

Planner = Callable[[PlanRequest], PlanOutcome]

MOST_ROUNDS = 10
"""Plans beyond the first."""
RATIOS = (2.5, 1.5, 1.15, 1.0)
"""Ratios within which the rates of a model's engines stay in turn; at the last they are of one kind."""
RESOLVED_SHARE = 0.3
"""Of the progress: engines simulated, before the first plan."""

Kind = tuple[str, str, int]
"""GPU type, profile and GPUs of an engine."""


def plan_with_engines(
    request: PlanRequest, planner: Planner, *, progress: Progress = ignore_progress
) -> PlanOutcome:
    """The verified outcome of a request with LLMs. `planner` plans a request whose LLMs have points.

    Raises InputFault if the request is not valid, or no model has a point or an engine on the fleet. Without a plan
    that keeps the limits of every LLM the outcome has no GPUs and says which limit breaks.
    """
    began = time.perf_counter()
    resolved = with_engine_points(request, lambda share, text: progress(RESOLVED_SHARE * share, text))
    notes = engine_notes(resolved)
    conflicts = unreachable_limits(resolved)
    if conflicts:
        statistics = PlanStatistics(0.0, time.perf_counter() - began, 0.0, "simulation")
        return replace(no_plan(resolved, "infeasible", statistics, notes), conflicts=conflicts)
    if notes and not any(model.points for model in resolved.models):
        remedy = "Offer larger GPUs, or groups of GPUs without MIG: 4xH100-SXM5-80GB:either."
        if all(point_type(entry.type) == CPU for entry in resolved.gpus):
            remedy = "Measure it on so many cores (torchsplit profile-llm), and give the points to request --points."
        raise InputFault("gpus", f"no engine fits on this fleet. {notes[0].removesuffix('.')}", remedy)
    progress(RESOLVED_SHARE, "planning")
    bound = planner(resolved)
    bound = replace(bound, warnings=tuple(dict.fromkeys((*bound.warnings, *notes))))
    if not bound.gpus:
        return bound
    checked = check_engines(resolved, bound)
    if not _broken(checked):
        return _verified(resolved, annotated(bound, checked))
    return _planned_again(resolved, planner, bound, checked, progress)


def _planned_again(
    resolved: PlanRequest,
    planner: Planner,
    bound: PlanOutcome,
    checked: Mapping[str, CheckedEngines],
    progress: Progress,
) -> PlanOutcome:
    """A plan whose models that broke a limit have engines that are more alike, at last of one kind, and then without
    the kinds that broke one alone.
    """
    alike: dict[str, _Alike] = {}
    plan, broken = bound, _broken(checked)
    for number in range(MOST_ROUNDS):
        for name in broken:
            alike[name] = alike.get(name, _Alike()).stricter(_kinds_in_use(plan, name))
        progress(
            0.6 + 0.3 * number / MOST_ROUNDS, f"planning again with more equal engines of {', '.join(broken)}"
        )
        planned = planner(_of_alike_engines(resolved, alike))
        if not planned.gpus:
            break
        plan = unproven_outcome(resolved, _as_one_variant(planned.gpus), planned.statistics)
        checked = check_engines(resolved, plan)
        broken = _broken(checked)
        if not broken:
            return _verified(resolved, annotated(_with_bound(resolved, plan, bound), checked))
    return _none_keeps(resolved, bound, broken)


@dataclass(frozen=True, slots=True)
class _Alike:
    """How alike the engines of a model have to be: rates within `RATIOS[step]`, and none of the kinds `without`."""

    step: int = -1
    without: frozenset[Kind] = frozenset()

    def stricter(self, in_use: set[Kind]) -> _Alike:
        """The next step, after engines of the kinds in use broke a limit."""
        if len(in_use) == 1:
            return _Alike(max(self.step, 0), self.without | in_use)
        return _Alike(min(self.step + 1, len(RATIOS) - 1), self.without)


def _broken(checked: Mapping[str, CheckedEngines]) -> dict[str, tuple[str, ...]]:
    return {name: engines.broken for name, engines in checked.items() if engines.broken}


def _kinds_in_use(plan: PlanOutcome, model: str) -> set[Kind]:
    return {
        (point_type(gpu.type), item.profile, tenant.gpus)
        for gpu, item, tenant in tenants_on(plan.gpus)
        if tenant.model == model
    }


def _of_alike_engines(resolved: PlanRequest, alike: Mapping[str, _Alike]) -> PlanRequest:
    """The request in which a plan has alike engines of each of these models: each set of alike ones is a variant."""

    def restricted(model: PlanModel) -> PlanModel:
        if model.name not in alike:
            return model
        rule = alike[model.name]
        points = sorted(
            (
                point
                for point in model.points
                if (point.gpu_type, point.profile, point.tensor_parallel) not in rule.without
            ),
            key=lambda point: point.throughput_rps,
        )
        sets: list[tuple[Point, ...]] = []
        for number, least in enumerate(points):
            most = least.throughput_rps * RATIOS[rule.step]
            chosen = tuple(point for point in points[number:] if point.throughput_rps <= most)
            if rule.step == len(RATIOS) - 1:
                chosen = (least,)
            if not any(set(map(id, chosen)) <= set(map(id, known)) for known in sets):
                sets.append(chosen)
        variants = (Variant(f"{WHOLE} {n}", (Stage(WHOLE, chosen),)) for n, chosen in enumerate(sets))
        # Without a point left it has no engine, which a variant without points says.
        return replace(model, variants=tuple(variants) or (Variant(WHOLE, (Stage(WHOLE),)),))

    return replace(resolved, models=tuple(map(restricted, resolved.models)))


def _as_one_variant(gpus: Sequence[PlannedGpu]) -> tuple[PlannedGpu, ...]:
    def renamed(item: PlannedSlice) -> PlannedSlice:
        tenants = (
            tenant if tenant.engine is None else replace(tenant, variant=WHOLE) for tenant in item.tenants
        )
        return replace(item, tenants=tuple(tenants))

    return tuple(replace(gpu, slices=tuple(map(renamed, gpu.slices))) for gpu in gpus)


def _with_bound(resolved: PlanRequest, plan: PlanOutcome, bound: PlanOutcome) -> PlanOutcome:
    objective = objective_within(resolved, plan, bound)
    proven = objective.proven_levels == level_count(resolved) and bound.status == "optimal"
    warnings = tuple(dict.fromkeys((*bound.warnings, *plan.warnings)))
    status: SolveStatus = "optimal" if proven else "feasible"
    return replace(plan, status=status, objective=objective, warnings=warnings)


def _none_keeps(
    resolved: PlanRequest, bound: PlanOutcome, broken: Mapping[str, tuple[str, ...]]
) -> PlanOutcome:
    """No plan: the last ones broke these limits. That none exists is not proven."""
    llms = {model.name: model.llm for model in resolved.models}
    texts = [
        f"{name}: its engines together break {limit} {getattr(llms[name], limit):g} at the load they get; "
        "a larger limit, a lower demand or more GPUs would do"
        for name, limits in broken.items()
        for limit in limits
    ]
    return no_plan(resolved, "timeout", bound.statistics, (*bound.warnings, *texts))


def annotated(outcome: PlanOutcome, checked: Mapping[str, CheckedEngines]) -> PlanOutcome:
    """The plan with the simulated times and tokens/s of its LLMs."""
    return replace(
        outcome,
        models=tuple(
            replace(
                model,
                ttft_ms=engines.ttft_ms,
                tpot_ms=engines.tpot_ms,
                output_tokens_per_s=engines.output_tokens_per_s,
            )
            if (engines := checked.get(model.name)) is not None
            else model
            for model in outcome.models
        ),
    )


def _verified(resolved: PlanRequest, outcome: PlanOutcome) -> PlanOutcome:
    begun = time.perf_counter()
    verify_with_engines(resolved, outcome)
    spent = outcome.statistics.verify_s + time.perf_counter() - begun
    return replace(outcome, statistics=replace(outcome.statistics, verify_s=spent))


def verify_with_engines(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Raises InternalFault if a plan violates the request, its engines break a limit, or their simulation gives other
    figures than the plan has.
    """
    resolved = with_engine_points(request)
    verify(resolved, outcome)
    checked = check_engines(resolved, outcome)
    for name, limits in _broken(checked).items():
        raise InternalFault(f"The plan fails its check: the engines of {name} break {', '.join(limits)}.")
    if annotated(outcome, checked) != outcome:
        raise InternalFault("The plan fails its check: its engines give other times than it says.")
