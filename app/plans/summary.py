"""A plan in words and a few numbers, for the head of the Plan page. No streamlit in here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from app.format.badges import Badge
from app.format.glossary import explain
from torchsplit_core.hardware import gpu_type, profile_cores
from torchsplit_core.pictures.numbers import (
    THIN,
    all_measured,
    counted,
    escape_markdown,
    exact,
    percent,
    short,
)
from torchsplit_core.pictures.slice_values import reachable_sms
from torchsplit_core.planning.outcome.instances import point_key, point_table
from torchsplit_core.planning.request.objective import first_bound, goal_of
from torchsplit_core.values import (
    Conflict,
    Demand,
    ObjectiveKind,
    PlanOutcome,
    PlanRequest,
    Relaxation,
    tenants_on,
)
from torchsplit_core.values.units import MB

Sharing = Literal["exclusive", "fractional"]
PlanAt = Literal["nominal", "low"]
SOLVED = ("optimal", "feasible")
"""States of an outcome that has a plan."""
SERVES_NOBODY = "serves no model"
"""The badge of such a plan in place of how far it is proven."""
OBJECTIVES: Mapping[ObjectiveKind, str] = {
    "leximin": "Fair: raise the worst-served model first, then the next",
    "max_min": "Raise the worst-served model, and only that",
    "weighted_sum": "Most requests in all, by weight",
    "min_gpus": "Fewest GPUs that meet every minimum",
    "attainment": "Hold as many demand samples as the fleet can",
}
"""Objective kinds in words."""
SHARINGS: Mapping[Sharing, str] = {
    "exclusive": "Every instance has its slice to itself",
    "fractional": "Instances may share a slice",
}
PLAN_AT: Mapping[PlanAt, str] = {"nominal": "nominal", "low": "low end"}
"""Ends of the intervals in words."""
DEMANDS = {
    "min_throughput_rps": "minimum requests per second",
    "max_latency_ms": "service-time limit",
    "max_response_ms": "response-time limit",
    "colocation": "must share a GPU",
    "attainment": "share of samples held",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A number with its label and what qualifies it."""

    label: str
    value: str
    note: str
    help: str = ""


def status_badge(plan: PlanOutcome) -> Badge:
    """How far the outcome is proven. That is about the search, so the colour is never that of success."""
    if plan.status in SOLVED and not any(model.throughput_rps for model in plan.models):
        return Badge(SERVES_NOBODY, "red")
    if plan.status == "optimal":
        return Badge("proven optimal", "gray")
    if plan.status == "infeasible":
        return Badge("infeasible, proven", "red")
    if plan.status == "timeout":
        return Badge("no plan found in time", "red")
    return Badge(f"gap {percent(plan.objective.gap)}" if plan.objective.gap else "not proven", "yellow")


def estimated_models(plan: PlanOutcome, request: PlanRequest) -> tuple[int, int]:
    """How many of the models with an instance have figures that were not measured, and how many have an instance."""
    points = point_table(request)
    estimated: dict[str, bool] = {}
    for gpu, item, tenant in tenants_on(plan.gpus):
        point = points.get(point_key(gpu.type, item.profile, tenant))
        measured = point is not None and point.basis == "measured"
        estimated[tenant.model] = estimated.get(tenant.model, False) or not measured
    return sum(estimated.values()), len(estimated)


def basis_badge(plan: PlanOutcome, request: PlanRequest | None) -> Badge | None:
    """Whether the figures behind the plan were measured."""
    if request is None:
        return Badge("basis unknown: the request is not here", "gray")
    estimated, total = estimated_models(plan, request)
    if not total:
        return None
    if not estimated:
        return Badge(all_measured(total), "green")
    return Badge(f"{estimated} of {total} profiles estimated", "yellow")


def metrics(plan: PlanOutcome, request: PlanRequest | None) -> tuple[Metric, Metric, Metric, Metric]:
    """The four numbers at the head of the page."""
    served, used, unused = (_explained(card(plan)) for card in (_served, _used, _unused))
    return _explained(_first(plan, weighted(request))), served, used, unused


def describe_metrics(plan: PlanOutcome, request: PlanRequest | None) -> str:
    """The first three numbers in a line of Markdown."""
    return " · ".join(f"{escape_markdown(item.label)}: {item.value}" for item in metrics(plan, request)[:3])


def _explained(metric: Metric) -> Metric:
    """The card with the glossary's explanation of its label behind its own help, as Markdown."""
    parts = (f"{metric.help}." if metric.help else "", explain(metric.label))
    return replace(metric, help=escape_markdown(" ".join(part for part in parts if part)))


def weighted(request: PlanRequest | None) -> bool:
    """Whether a weight makes some normalised throughput differ from throughput over demand."""
    return request is not None and any(model.weight != 1 for model in request.models)


def _proof(plan: PlanOutcome) -> str:
    """What is proven of the value in the card, which is that of the first level, and of the other levels."""
    goal = plan.objective
    bound = first_bound(goal)
    if bound is None:
        return "no bound known"
    levels = len(goal.levels) or (len(plan.models) if goal_of(goal).every_level else 1)
    side = "at least" if goal_of(goal).by_cost else "at most"
    if goal.levels:
        side = f"in the highest tier {side}"
    if plan.status == "optimal" or goal.proven_levels >= levels:
        words = "proven: no plan does better"
    elif goal.proven_levels:
        words = f"proven for {goal.proven_levels} of {levels} levels"
        if goal.gap is not None:
            words += f", level {goal.proven_levels + 1} to {percent(goal.gap)}"
    else:
        words = f"proven: {side} {short(bound)}" + (f" · gap {percent(goal.gap)}" if goal.gap else "")
    return f"{words}{_fractional(plan)}{_routed_note(plan)}"


def _routed_note(plan: PlanOutcome) -> str:
    """What routed pairs send between GPUs, and the least that a plan of this value must send."""
    routed = plan.objective.routed
    if routed is None:
        return ""
    words = f" · {short(routed.bytes_per_s / MB)} MB/s between GPUs"
    if routed.gap and routed.bound is not None:
        words += f", at least {short(routed.bound / MB)} needed"
    return words


def _fractional(plan: PlanOutcome) -> str:
    """The bound if GPUs could be cut freely, known once the plan is explained."""
    for step in plan.explanation.steps if plan.explanation else ():
        if step.step == "relaxed" and step.bound is not None:
            return f" · {short(step.bound)} if GPUs could be cut freely"
    return ""


def _one_more(plan: PlanOutcome) -> str:
    """What one more GPU of the most useful type would bring, known once the plan is explained."""
    changes = plan.explanation.changes if plan.explanation else ()
    more = [change for change in changes if change.what == "gpu" and (change.new or 0) > (change.old or 0)]
    # With tiers the first level is only of the highest tier, not the figure of the card.
    first = () if plan.objective.levels else (1, None)
    better = [change for change in more if change.effect == "better" and change.level in first]
    if better:
        best = max(better, key=lambda change: abs((change.value_after or 0) - (change.value_before or 0)))
        return f"one more {best.gpu_type}: {short(best.value_before)} → {short(best.value_after)}"
    if more and all(change.effect == "same" for change in more):
        return "one more changes nothing"
    return ""


def _first(plan: PlanOutcome, weighted: bool) -> Metric:
    goal, samples = goal_of(plan.objective), plan.samples
    if samples is not None:
        held = f"{exact(samples.held)} of {exact(samples.count)} samples · {_proof(plan)}"
        if goal.by_share:
            return Metric("Samples held", percent(samples.share), held)
        return Metric(f"{goal.label} needed", short(plan.objective.value), f"holds {held}")
    if goal.by_cost:
        return Metric(f"{goal.label} needed", short(plan.objective.value), _proof(plan))
    least = min((model.normalised for model in plan.models), default=None)
    note = _proof(plan)
    if not goal.fair:
        note = f"{goal.label} {short(plan.objective.value)} · {note}"
    name = min(plan.models, key=lambda model: model.normalised).name if plan.models else ""
    label = "Least throughput ÷ weight · demand" if weighted else "Worst-served model gets"
    value = f"{short(least)}{THIN}×{'' if weighted else ' its demand'}"
    worst = (
        f"{name} is served worst: {exact(least)} × its {'weight · ' if weighted else ''}demand"
        if name
        else ""
    )
    return Metric(label, value, note, worst)


def _served(plan: PlanOutcome) -> Metric:
    total = sum(model.throughput_rps for model in plan.models)
    most = max(plan.models, key=lambda model: model.throughput_rps, default=None)
    note = f"most to {most.name}: {short(most.throughput_rps)}" if most and total else "no model is served"
    about = f"{exact(total)} requests per second"
    return Metric("Throughput, all models", short(total, "req/s"), note, about)


def _used(plan: PlanOutcome) -> Metric:
    slices = sum(len(gpu.slices) for gpu in plan.gpus)
    free = sum(not item.tenants for gpu in plan.gpus for item in gpu.slices)
    note = counted(slices, "slice") + (f", {free} of them free" if free else ", none free")
    more = _one_more(plan)
    note = f"{note} · {more}" if more else note
    if of_cores(plan):
        busy, cores = _cores(plan)
        return Metric("Cores used", f"{busy} of {cores}", note)
    used = sum(gpu.used for gpu in plan.gpus)
    return Metric("GPUs used", f"{used} of {len(plan.gpus)}", note)


def of_cores(plan: PlanOutcome) -> bool:
    """Whether the plan has no GPU, only cores of hosts."""
    return bool(plan.gpus) and all(gpu_type(gpu.type).divided == "cores" for gpu in plan.gpus)


def _cores(plan: PlanOutcome) -> tuple[int, int]:
    """The cores of slices with a tenant, and all."""
    busy = sum(profile_cores(item.profile) or 0 for gpu in plan.gpus for item in gpu.slices if item.tenants)
    return busy, sum(gpu_type(gpu.type).compute_slices for gpu in plan.gpus)


def _unused(plan: PlanOutcome) -> Metric:
    """Multiprocessors of the used GPUs that no instance reaches, or for a plan of cores alone the idle cores."""
    if of_cores(plan):
        busy, cores = _cores(plan)
        return Metric("Idle cores", str(cores - busy), "cores in no slice that serves a model")
    free = lost = total = 0
    for gpu in plan.gpus:
        kind = gpu_type(gpu.type)
        if not gpu.slices or kind.divided == "cores":
            continue
        counts = [kind.profile(item.profile).sm_count for item in gpu.slices]
        reachable = reachable_sms(kind, gpu.slices)
        if reachable is None or None in counts:
            return Metric("Unused on used GPUs", "n/a", f"the SM counts of {gpu.type} are not sourced")
        planned = sum(count or 0 for count in counts)
        idle = sum(count or 0 for count, item in zip(counts, gpu.slices, strict=True) if not item.tenants)
        total += reachable
        free += idle
        lost += reachable - planned
    note = "no GPU is cut"
    if total:
        parts = [f"{free} in free slices"] * bool(free) + [f"{lost} that no slice reaches"] * bool(lost)
        note = ", ".join(parts) or "nothing idle"
    about = f"of {total} multiprocessors (SMs)"
    return Metric("Unused on used GPUs", f"{short(free + lost)}{THIN}SMs", note, about)


def describe_conflict(conflict: Conflict) -> tuple[str, str]:
    """The first words of a conflict, and its demands."""
    first = "Not together" if len(conflict.demands) > 1 else "Not possible"
    return first, "; ".join(describe_demand(demand) for demand in conflict.demands)


def describe_demand(demand: Demand) -> str:
    """A conflicting demand in words."""
    if demand.models and demand.demand != "colocation":
        return DEMANDS[demand.demand]
    if demand.models:
        return f"{' and '.join(demand.models)} {DEMANDS['colocation']}"
    return f"{demand.model}'s {DEMANDS[demand.demand]}"


def describe_relaxation(change: Relaxation) -> str:
    """One change that would help."""
    verb, unit = ("Lower", "req/s") if change.demand == "min_throughput_rps" else ("Raise", "ms")
    what = DEMANDS[change.demand]
    return f"{verb} {change.model}'s {what} from {exact(change.old)} to {exact(change.new)}{THIN}{unit}"
