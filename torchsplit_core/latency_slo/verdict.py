"""The verdict on a plan: a level, a sentence and the facts behind them, the same wherever it is shown.

The level rates the plan, not the search: a plan proven optimal may serve no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchsplit_core.hardware import gpu_type
from torchsplit_core.latency_slo import verdict_text as words
from torchsplit_core.latency_slo.expected_response import ExpectedResponse, expected_responses
from torchsplit_core.latency_slo.frontend import FrontendLoad, describe_shortfall, frontend_load
from torchsplit_core.latency_slo.verdict_text import Fact
from torchsplit_core.planning.confidence.assessment import ModelConfidence, PlanConfidence, assess_confidence
from torchsplit_core.planning.confidence.formatting import format_figure, format_names
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.tolerance import TOLERANCE, equal
from torchsplit_core.values import InputFault, PlannedModel, PlanOutcome, PlanRequest, slice_name

Level = Literal["green", "amber", "red"]


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """Whether demands, minima, limits and memory hold. `facts` has one entry per question; empty if nothing is served.

    `not_served` are the models without throughput, `late` those that may exceed their limit under load.
    `may_plan_for_response`: a service-time limit that may not hold for the response, which the request does not limit.
    """

    level: Level
    sentence: str
    facts: tuple[Fact, ...] = ()
    not_served: tuple[str, ...] = ()
    late: tuple[ExpectedResponse, ...] = ()

    @property
    def may_plan_for_response(self) -> bool:
        """Whether planning with a limit on the response time could give another plan."""
        return any(not response.promised for response in self.late)


def plan_verdict(request: PlanRequest | None, plan: PlanOutcome) -> PlanVerdict:
    """The verdict on a plan; `request` is the request that it answers, None if unavailable.

    Simulates models with a limit at the arrivals of the request, in a fraction of a second.
    """
    if plan.status == "infeasible":
        return PlanVerdict("red", "No plan gives what is asked on this fleet; that is proven.")
    if plan.status == "timeout":
        return PlanVerdict("red", "Nothing is met: no plan was found in the time given.")
    if request is None:
        return _unknown("the request of this plan is not here")
    if plan.request_sha256 != request_hash(request):
        return _unknown("the plan answers an earlier request")
    try:
        confidence = assess_confidence(request, plan)
    except InputFault as fault:
        return _unknown(str(fault).removesuffix("."))
    return _verdict_on(request, plan, confidence)


def _unknown(why: str) -> PlanVerdict:
    return PlanVerdict("amber", f"Whether every model gets its demand is not known: {why}.")


def _verdict_on(request: PlanRequest, plan: PlanOutcome, confidence: PlanConfidence) -> PlanVerdict:
    unserved = tuple(model.name for model in confidence.models if not model.throughput_rps)
    expected = expected_responses(request, plan)
    late = (
        ()
        if isinstance(expected, str)
        else tuple(response for response in expected if not response.within_limit)
    )
    excess, unknown = _memory(plan)
    front = frontend_load(request, plan)
    facts = words.list_facts(confidence, expected, late, excess, unknown, unserved, front)
    level, sentence = _level(request, plan, confidence, expected, late, front)
    if excess and level != "red":
        level, sentence = "amber", f"{sentence} Memory is exceeded: {format_names(excess)}."
    return PlanVerdict(level, sentence, facts, unserved, late)


def _level(
    request: PlanRequest,
    plan: PlanOutcome,
    confidence: PlanConfidence,
    expected: tuple[ExpectedResponse, ...] | str,
    late: tuple[ExpectedResponse, ...],
    front: FrontendLoad | None,
) -> tuple[Level, str]:
    # The models below demand are those of this plan; a better plan may have fewer.
    better = " A better plan is not ruled out." if plan.status == "feasible" else ""
    slow = [model for model in plan.models if _over_service_limit(request, model)]
    if slow:
        return "red", words.describe_over_service_limit(request, slow)
    if not any(model.throughput_rps for model in confidence.models):
        return "red", f"No model is served.{words.describe_missing_figures(request)}"
    if not confidence.meets:
        short = {model.name for model in confidence.models if not model.meets}
        more = words.describe_other_late([response for response in late if response.model not in short])
        if _only_minima_required(request) and not any(
            _below_minimum(request, model) for model in confidence.models
        ):
            return "amber", words.describe_minima_only(confidence) + more
        return "red", words.describe_below_demand(confidence) + words.describe_missing_figures(
            request
        ) + more + better
    if front is not None and (held_up := describe_shortfall(front)):
        return "red", words.describe_frontend_shortfall(confidence, held_up)
    if any(response.promised and response.exceeds for response in late):
        return "red", words.describe_met_but_late(confidence, late) + better
    if late or not confidence.meets_low:
        return "amber", words.describe_met_but_late(
            confidence, late
        ) if confidence.meets_low else words.describe_met_at_nominal(confidence, late)
    if isinstance(expected, str):
        return (
            "amber",
            f"{words.describe_met(confidence, 0)} Whether limits hold under load is not known: {expected}",
        )
    return "green", words.describe_met(confidence, len(expected))


def _only_minima_required(request: PlanRequest) -> bool:
    """Whether only minima are required: fewest GPUs need not meet demands, so unmet demands are only reported."""
    return goal_of(request).by_cost and any(model.min_throughput_rps for model in request.models)


def _below_minimum(request: PlanRequest, model: ModelConfidence) -> bool:
    spec = next(requested for requested in request.models if requested.name == model.name)
    least = spec.min_throughput_rps or spec.demand_rps
    return model.throughput_rps < least and not equal(model.throughput_rps, least)


def _over_service_limit(request: PlanRequest, model: PlannedModel) -> bool:
    limit = next(requested.max_latency_ms for requested in request.models if requested.name == model.name)
    if limit is None or model.latency_ms is None or model.latency_ms <= limit:
        return False
    return not equal(model.latency_ms, limit)


def _memory(plan: PlanOutcome) -> tuple[list[str], list[str]]:
    """The slices whose tenants need more memory than they have, and the models without a memory figure."""
    excess, unknown = [], []
    for gpu in plan.gpus:
        for item in gpu.slices:
            unknown += [tenant.model for tenant in item.tenants if tenant.memory_gib is None]
            need = sum(tenant.memory_gib or 0.0 for tenant in item.tenants)
            size = gpu_type(gpu.type).profile(item.profile).memory_gib
            if size is not None and need > size * (1 + TOLERANCE):
                place = f"{gpu.id} {slice_name(item.profile, item.start)}"
                excess.append(f"{place} {format_figure(need)} of {format_figure(size)} GiB")
    return excess, list(dict.fromkeys(unknown))
