"""The summary that `plan` prints beside the outcome: verdict, proof, basis of the figures, conflicts."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchsplit_core.cli.arguments.sample_options import sample_lines
from torchsplit_core.values import tenants_on
from torchsplit_core.values.units import MB

if TYPE_CHECKING:
    from torchsplit_core.values import ObjectiveValue, PlanExplanation, PlanOutcome, PlanRequest


def print_summary(request: PlanRequest, outcome: PlanOutcome) -> None:
    """Print the summary to standard error."""
    for line in summary_lines(request, outcome):
        print(line, file=sys.stderr)


def summary_lines(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """The lines of the summary. The verdict comes first, since a proven plan may miss every demand."""
    # Imported here, so that other commands start without the planner.
    from torchsplit_core.latency_slo.cost_and_tier_text import describe_cost, describe_power, describe_tiers
    from torchsplit_core.latency_slo.verdict import plan_verdict

    verdict = plan_verdict(request, outcome)
    yield f"{verdict.level}: {verdict.sentence}"
    for fact in verdict.facts:
        yield f"{fact.question[0].lower()}{fact.question[1:]}: {fact.text}"
    if verdict.may_plan_for_response:
        yield (
            "to plan for the response time, waits included: give the limits as max_response_ms "
            "(torchsplit request --max-response MODEL=MS)"
        )
    yield _format_proof(outcome)
    yield from sample_lines(outcome)
    if outcome.touched_gpus is not None:
        most = request.objective.max_touched_gpus
        allowed = "" if most is None else f", at most {most} allowed"
        yield f"GPUs with other instances or tenants than now: {outcome.touched_gpus}{allowed}"
    yield from filter(
        None, (describe(request, outcome) for describe in (describe_tiers, describe_cost, describe_power))
    )
    if outcome.status in ("optimal", "feasible"):
        yield from _confidence_lines(request, outcome)
        yield from _response_lines(request, outcome)
        yield from _engine_lines(request, outcome)
    for warning in outcome.warnings:
        yield f"warning: {warning}"
    for conflict in outcome.conflicts:
        yield f"conflict: {conflict.message}"
    if outcome.status in ("optimal", "feasible"):
        yield from _failure_lines(request, outcome)
    if outcome.status == "infeasible":
        yield from _relaxation_lines(outcome)
    if outcome.explanation is not None:
        yield from _binding_lines(outcome.explanation)


def _format_proof(outcome: PlanOutcome) -> str:
    from torchsplit_core.planning.request.objective import reached_levels

    objective = outcome.objective
    text = f"{outcome.status}: {objective.kind} {_figure(objective.value)}"
    if outcome.status not in ("optimal", "feasible"):
        return text
    levels, proven = reached_levels(objective), objective.proven_levels
    bound = f"bound {_figure(objective.bound)}, gap {_figure(objective.gap)}"
    known = (
        f"{proven} of {len(levels)} levels proven"
        if len(levels) > 1
        else "proven"
        if proven
        else "not proven"
    )
    if 0 < proven < len(levels):
        # The value is the least level, bound and gap are of the first that is not proven.
        text += f", {known}; level {proven + 1}: {_figure(levels[proven])}, {bound}"
    else:
        text += f", {bound}, {known}"
    return text + _format_routed(objective)


def _format_routed(objective: ObjectiveValue) -> str:
    """The traffic of routed co-locations between GPUs, with its bound if one is proven."""
    routed = objective.routed
    if routed is None:
        return ""
    bound = (
        "" if routed.bound is None else f" (bound {_figure(routed.bound / MB)}, gap {_figure(routed.gap)})"
    )
    return f", {_figure(routed.bytes_per_s / MB)} MB/s between GPUs{bound}"


def _confidence_lines(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    from torchsplit_core.planning.confidence import formatting
    from torchsplit_core.planning.confidence.assessment import assess_confidence

    confidence = assess_confidence(request, outcome)
    yield f"{outcome.status} for {formatting.format_figures_used(confidence)}"
    throughputs = formatting.format_models(outcome)
    wanted = {model.name: model.wanted_rps for model in confidence.models}
    for model in outcome.models:
        carried = model.bytes_across_cuts_per_s
        across = "" if carried is None else f", {formatting.format_figure(carried / MB)} MB/s across its cuts"
        yield (
            f"{model.name}: throughput {throughputs[model.name]} of "
            f"{formatting.format_figure(wanted[model.name])} wanted{across}"
        )
    if not confidence.meets_low:
        yield f"surest to fail: {formatting.format_surest_to_fail(confidence)}"
    if confidence.next_measurement is not None:
        yield f"best measured next: {formatting.format_measurement(confidence.next_measurement)}"


BOUND_BY_TEXTS = {
    "rate": "waiting in queues: lower its rate, or give it more slices",
    "fill": "what its batch takes longer than a request alone: give it faster slices or smaller batches",
    "service": "what a request takes alone: only faster slices help",
}
"""By `response_bound_by`: the largest part of the response time at the limited percentile, and what shortens it."""


def _response_lines(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Simulated response times of the models with a response-time limit."""
    for spec, got in zip(request.models, outcome.models, strict=True):
        times = got.response_ms
        if times is None or spec.max_response_ms is None or got.response_bound_by is None:
            continue
        yield (
            f"{spec.name}: response p50 {_figure(times.p50)} ms, p95 {_figure(times.p95)} ms, "
            f"p99 {_figure(times.p99)} ms, p{spec.response_percentile:g} within {_figure(spec.max_response_ms)} ms; "
            f"bound by {got.response_bound_by} ({BOUND_BY_TEXTS[got.response_bound_by]})"
        )


def _engine_lines(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Of each LLM its engines, and the times of its tokens at the load that it gets."""
    for spec, got in zip(request.models, outcome.models, strict=True):
        if spec.llm is None or got.variant is None:
            continue
        places: defaultdict[str, float] = defaultdict(float)
        for gpu, item, tenant in tenants_on(outcome.gpus):
            if tenant.model == spec.name:
                together = f"{tenant.gpus} × {gpu.type}" if tenant.gpus > 1 else gpu.type
                places[f"{together} {item.profile}".strip()] += 1 / tenant.gpus
        engines = ", ".join(f"{round(count)} on {place}" for place, count in places.items())
        yield f"{spec.name}: engines {engines}"
        for name, limit, figure in (
            ("TTFT", spec.llm.max_ttft_ms, got.ttft_ms),
            ("time per token", spec.llm.max_tpot_ms, got.tpot_ms),
        ):
            if figure is None:
                continue
            interval = "" if figure.low is None else f" ({_figure(figure.low)} to {_figure(figure.high)})"
            within = "" if limit is None else f", within {_figure(limit)} ms"
            yield f"{spec.name}: {name} p{spec.llm.percentile:g} {_figure(figure.value)} ms{interval}{within}"


def _relaxation_lines(outcome: PlanOutcome) -> Iterator[str]:
    changes = outcome.least_relaxation
    kinds = {demand.demand for conflict in outcome.conflicts for demand in conflict.demands}
    if not changes and "max_response_ms" in kinds:
        yield "would help: raise the max_response_ms named above, lower that model's rate, or add a GPU"
        return
    if not changes and kinds & {"max_ttft_ms", "max_tpot_ms"}:
        yield "would help: raise the limit to more than the time named above, or offer a quicker GPU or a larger group"
        return
    if "attainment" in kinds:
        yield "would help: lower the attainment to the share named above, or add a GPU"
        return
    for change in changes or ():
        verb, unit = ("lower", "requests/s") if change.demand == "min_throughput_rps" else ("raise", "ms")
        yield f"would help: {verb} {change.demand} of {change.model} from {change.old:g} to {change.new:.9g} {unit}"
    if not changes:
        yield "would help: no change of a number; drop a co-location, or add a GPU"


def _binding_lines(explanation: PlanExplanation) -> Iterator[str]:
    for model in explanation.models:
        binding = ", ".join(limit.kind for limit in model.limits if limit.binds) or "nothing on its own"
        unsure = sum(limit.binds is None for limit in model.limits)
        more = f" ({unsure} not proven)" if unsure else ""
        yield f"binds {model.model}: {binding}{more}"
        for limit in model.limits:
            if limit.kind == "link" and limit.binds and limit.change is not None:
                yield f"{model.model}: the link binds ({_figure(limit.change.old)} GB/s)"
    for reason in explanation.engines:
        place = reason.place
        if reason.reason == "no_engine":
            yield f"{reason.model}: no engine on {place}: {reason.detail}"
        elif reason.trial is not None and reason.trial.effect == "infeasible":
            yield f"{reason.model}: all engines on {place}: no plan"
        elif reason.trial is not None and reason.trial.value_after is not None:
            before, after = reason.trial.value_before, reason.trial.value_after
            yield f"{reason.model}: all engines on {place}: {_figure(after)} in place of {_figure(before)}"


def _failure_lines(request: PlanRequest, outcome: PlanOutcome) -> Iterator[str]:
    """Whether the plan survives any GPU loss, if required, and what the worst one would cost."""
    from torchsplit_core.planning.outcome.resilience import failure_losses, worst_failure
    from torchsplit_core.planning.request.objective import requires_resilience

    failures = failure_losses(request, outcome.gpus)
    if failures and requires_resilience(request):
        yield "survives: every minimum holds with any one GPU lost"
    worst = worst_failure(failures)
    if worst is None:
        return
    parts = []
    for model in worst.models:
        owed = "minimum" if model.below_least_rps > 0 else "demand"
        least = model.least_rps if model.below_least_rps > 0 else model.demand_rps
        parts.append(f"{model.name} {_figure(model.left_rps)} of its {owed} of {_figure(least)} requests/s")
    costly = sum(bool(loss.models) for loss in failures)
    yield f"if lost, the worst of {costly} of {len(failures)} used GPUs: {worst.gpu} leaves {'; '.join(parts)}"


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"
