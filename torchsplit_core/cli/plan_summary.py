"""What `plan` prints beside the outcome: how far it is proven, what it rests on, what stands in the way."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchsplit_core.values.units import MB

if TYPE_CHECKING:
    from torchsplit_core.values import ObjectiveValue, PlanExplanation, PlanOutcome, PlanRequest


def tell(request: PlanRequest, outcome: PlanOutcome) -> None:
    """The whole summary, on standard error."""
    for line in summary(request, outcome):
        print(line, file=sys.stderr)


def summary(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Its lines. First what the plan gives of what is asked: a proven plan may serve nobody."""
    # Only a plan asks for it: the other commands start without the planner.
    from torchsplit_core.responding.plan_words import money_words, tier_words
    from torchsplit_core.responding.verdict import verdict

    found = verdict(request, outcome)
    yield f"{found.level}: {found.sentence}"
    for fact in found.facts:
        yield f"{fact.question[0].lower()}{fact.question[1:]}: {fact.words}"
    if found.may_plan_for_response:
        yield (
            "to plan for the response time, waits included: give the limits as max_response_ms "
            "(torchsplit request --max-response MODEL=MS)"
        )
    yield _proof(outcome)
    yield from filter(None, (tier_words(request, outcome), money_words(request, outcome)))
    if outcome.status in ("optimal", "feasible"):
        yield from _sureness(request, outcome)
        yield from _responses(request, outcome)
    for warning in outcome.warnings:
        yield f"warning: {warning}"
    for conflict in outcome.conflicts:
        yield f"conflict: {conflict.message}"
    if outcome.status in ("optimal", "feasible"):
        yield from _losses(request, outcome)
    if outcome.status == "infeasible":
        yield from _relaxation(outcome)
    if outcome.explanation is not None:
        yield from _bindings(outcome.explanation)


def _proof(outcome: PlanOutcome) -> str:
    objective = outcome.objective
    told = f"{outcome.status}: {objective.kind} {_figure(objective.value)}"
    if outcome.status not in ("optimal", "feasible"):
        return told
    return (
        f"{told}, bound {_figure(objective.bound)}, gap {_figure(objective.gap)}, "
        f"{objective.proven_levels} levels proven{_sent(objective)}"
    )


def _sent(objective: ObjectiveValue) -> str:
    """What routed co-locations send between GPUs, with its bound where one is proven."""
    told = objective.routed
    if told is None:
        return ""
    bound = "" if told.bound is None else f" (bound {_figure(told.bound / MB)}, gap {_figure(told.gap)})"
    return f", {_figure(told.bytes_per_s / MB)} MB/s between GPUs{bound}"


def _sureness(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    from torchsplit_core.planning.sureness import words
    from torchsplit_core.planning.sureness.verdict import sureness

    found = sureness(request, outcome)
    yield f"{outcome.status} for {words.figures_words(found)}"
    gets = words.model_words(outcome)
    wanted = {model.name: model.wanted_rps for model in found.models}
    for model in outcome.models:
        carried = model.bytes_across_cuts_per_s
        across = "" if carried is None else f", {words.figure(carried / MB)} MB/s across its cuts"
        yield f"{model.name}: throughput {gets[model.name]} of {words.figure(wanted[model.name])} wanted{across}"
    if not found.meets_low:
        yield f"surest to fail: {words.surest_words(found)}"
    if found.next_measurement is not None:
        yield f"best measured next: {words.measurement_words(found.next_measurement)}"


BOUND_BY = {
    "rate": "waiting in queues: lower its rate, or give it more slices",
    "fill": "what its batch takes longer than a request alone: give it faster slices or smaller batches",
    "service": "what a request takes alone: only faster slices help",
}
"""What most of a response at the limited percentile is, and what would shorten it."""


def _responses(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Simulated response times of the models that limit them."""
    for spec, got in zip(request.models, outcome.models, strict=True):
        times = got.response_ms
        if times is None or spec.max_response_ms is None or got.response_bound_by is None:
            continue
        yield (
            f"{spec.name}: response p50 {_figure(times.p50)} ms, p95 {_figure(times.p95)} ms, "
            f"p99 {_figure(times.p99)} ms, p{spec.response_percentile:g} within {_figure(spec.max_response_ms)} ms; "
            f"bound by {got.response_bound_by} ({BOUND_BY[got.response_bound_by]})"
        )


def _relaxation(outcome: PlanOutcome) -> Iterator[str]:
    changes = outcome.least_relaxation
    kinds = {demand.demand for conflict in outcome.conflicts for demand in conflict.demands}
    if not changes and "max_response_ms" in kinds:
        yield "would help: raise the max_response_ms named above, lower that model's rate, or add a GPU"
        return
    for change in changes or ():
        verb, unit = ("lower", "requests/s") if change.demand == "min_throughput_rps" else ("raise", "ms")
        yield f"would help: {verb} {change.demand} of {change.model} from {change.old:g} to {change.new:.9g} {unit}"
    if not changes:
        yield "would help: no change of a number; drop a co-location, or add a GPU"


def _bindings(explanation: PlanExplanation) -> Iterator[str]:
    for model in explanation.models:
        binding = ", ".join(limit.kind for limit in model.limits if limit.binds) or "nothing on its own"
        unsure = sum(limit.binds is None for limit in model.limits)
        more = f" ({unsure} not proven)" if unsure else ""
        yield f"binds {model.model}: {binding}{more}"
        for limit in model.limits:
            if limit.kind == "link" and limit.binds and limit.change is not None:
                yield f"{model.model}: the link binds ({_figure(limit.change.old)} GB/s)"


def _losses(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """What the loss of the GPU that can be spared least would cost, on one line."""
    from torchsplit_core.planning.outcome.losses import losses, worst_loss
    from torchsplit_core.planning.request.objective import must_survive

    found = losses(request, outcome.gpus)
    if found and must_survive(request):
        yield "survives: every minimum holds with any one GPU lost"
    worst = worst_loss(found)
    if worst is None:
        return
    parts = []
    for model in worst.models:
        owed = "minimum" if model.below_least_rps > 0 else "demand"
        least = model.least_rps if model.below_least_rps > 0 else model.demand_rps
        parts.append(f"{model.name} {_figure(model.left_rps)} of its {owed} of {_figure(least)} requests/s")
    costly = sum(bool(loss.models) for loss in found)
    yield f"if lost, the worst of {costly} of {len(found)} used GPUs: {worst.gpu} leaves {'; '.join(parts)}"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"
