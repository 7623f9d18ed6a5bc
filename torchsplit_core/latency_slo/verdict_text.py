"""The text of a verdict: its sentences, and an answer to each question about a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.latency_slo.expected_response import ExpectedResponse
from torchsplit_core.latency_slo.frontend import FrontendLoad, describe_frontend
from torchsplit_core.planning.confidence.assessment import ModelConfidence, PlanConfidence
from torchsplit_core.planning.confidence.formatting import (
    format_low_share,
    format_low_shortfalls,
    format_names,
    format_nominal_shortfalls,
    format_share,
)
from torchsplit_core.planning.request.coverage import models_without_figures
from torchsplit_core.values import PlannedModel, PlanRequest

FactAnswer = Literal["yes", "no", "unknown", "not asked"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A question about a plan, its answer, and the reason."""

    question: str
    answer: FactAnswer
    why: str = ""

    @property
    def text(self) -> str:
        """The answer with its reason."""
        return f"{self.answer} ({self.why})" if self.why else self.answer


def list_facts(
    confidence: PlanConfidence,
    expected: tuple[ExpectedResponse, ...] | str,
    late: Sequence[ExpectedResponse],
    excess: Sequence[str],
    unknown: Sequence[str],
    unserved: Sequence[str],
    front: FrontendLoad | None = None,
) -> tuple[Fact, ...]:
    """Facts on demand, low end, response under load and memory, on the frontend if its costs are known, and on models
    that are not served, if any. Empty if no model is served."""
    if len(unserved) == len(confidence.models):
        return ()
    served = (Fact("Serves every model", "no", f"not served: {', '.join(unserved)}"),) if unserved else ()
    return (
        Fact("Meets its demand", "yes" if confidence.meets else "no", format_nominal_shortfalls(confidence)),
        Fact("Meets its demand even at the low end", confidence.low_end, format_low_shortfalls(confidence)),
        _response_fact(expected, late),
        _memory_fact(excess, unknown),
        *(() if front is None else (_frontend_fact(front),)),
        *served,
    )


def _response_fact(expected: tuple[ExpectedResponse, ...] | str, late: Sequence[ExpectedResponse]) -> Fact:
    question = "Keeps its limits under load"
    if isinstance(expected, str):
        return Fact(question, "unknown", expected.removesuffix("."))
    if not expected:
        return Fact(question, "not asked", "no model that is served has a limit")
    exceeding = [response for response in late if response.exceeds]
    if exceeding:
        return Fact(question, "no", _list_late(exceeding))
    return (
        Fact(question, "unknown", f"too close to tell: {_list_late(late)}") if late else Fact(question, "yes")
    )


def _frontend_fact(front: FrontendLoad) -> Fact:
    passes = not any(model.short for model in front.models)
    return Fact("Passes the front", "yes" if passes else "no", describe_frontend(front))


def _memory_fact(excess: Sequence[str], unknown: Sequence[str]) -> Fact:
    question = "Fits in memory"
    if excess:
        return Fact(question, "no", format_names(excess))
    if unknown:
        return Fact(question, "unknown", f"no memory figure for {format_names(unknown)}")
    return Fact(question, "yes")


def describe_over_service_limit(request: PlanRequest, slow: Sequence[PlannedModel]) -> str:
    """Models whose batches exceed the service-time limit."""
    limits = {model.name: model.max_latency_ms for model in request.models}
    excesses = [
        f"{model_.name} {_format_ms(model_.latency_ms)} of {_format_ms(limits[model_.name])} ms"
        for model_ in slow
    ]
    verb = "is" if len(slow) == 1 else "are"
    return (
        f"{_count_of_models(len(slow), len(request.models))} {verb} over the service-time limit: "
        f"{format_names(excesses)}."
    )


def describe_missing_figures(request: PlanRequest) -> str:
    """Models not served because they have no figures for the fleet; empty if all have some."""
    bare, fleet = (
        models_without_figures(request),
        ", ".join(dict.fromkeys(entry.type for entry in request.gpus)),
    )
    if not bare:
        return ""
    who = "No model has"
    if len(bare) < len(request.models):
        who = f"{format_names(bare)} {'has' if len(bare) == 1 else 'have'} no"
    return f" {who} figures for {fleet}."


def describe_below_demand(confidence: PlanConfidence) -> str:
    """Models that get less than their demand, worst first."""
    less = _worst_first(model for model in confidence.models if not model.meets)
    verb = "does not get its demand" if len(less) == 1 else "do not get their demand"
    return f"{_count_of_models(len(less), len(confidence.models))} {verb}: {_format_shares(less)}."


def describe_minima_only(confidence: PlanConfidence) -> str:
    """Every minimum is met, but some demand is not."""
    less = _worst_first(model for model in confidence.models if not model.meets)
    verb = "gets" if len(less) == 1 else "get"
    return (
        f"Every minimum is met, but {_count_of_models(len(less), len(confidence.models))} {verb} less than the demand:"
        f" {_format_shares(less)}."
    )


def describe_frontend_shortfall(confidence: PlanConfidence, short: str) -> str:
    """The slices meet every demand, but not all of it passes the frontend."""
    total = len(confidence.models)
    them = (
        f"The slices give all {total} models" if total > 1 else f"The slices give {confidence.models[0].name}"
    )
    return f"{them} the demand, but not all of it passes. {short}"


def describe_other_late(late: Sequence[ExpectedResponse]) -> str:
    """Late models among those that get their demand, when others do not."""
    return f" Under load {_describe_late(late, 'the others')}." if late else ""


def describe_met_but_late(confidence: PlanConfidence, late: Sequence[ExpectedResponse]) -> str:
    """Every demand is met, but not every limit holds once requests queue."""
    without_queues = (
        "" if any(response.promised for response in late) else " Without queues every limit holds."
    )
    return (
        f"{_all_models_met(confidence)}, but under load "
        f"{_describe_late(late, str(len(confidence.models)))}.{without_queues}"
    )


def describe_met_at_nominal(confidence: PlanConfidence, late: Sequence[ExpectedResponse]) -> str:
    """The nominal figures meet every demand, but their low end does not."""
    failing = [f"{model.name} {format_low_share(model)}" for model in confidence.failing_low]
    under_load = f" Under load {_describe_late(late, str(len(confidence.models)))}." if late else ""
    return (
        f"{_all_models_met(confidence)} at the nominal figures, but at their low end {len(failing)} "
        f"of {len(confidence.models)}"
        f" {'does' if len(failing) == 1 else 'do'} not: {format_names(failing)}.{under_load} "
        f"{_describe_tightest(confidence)}"
    )


def describe_met(confidence: PlanConfidence, limits: int) -> str:
    """Every demand is met, and so is every limit, if any."""
    low = ", also at the low end of the figures" if confidence.low_end == "yes" else ""
    held = ", and every limit holds under load" if limits else ""
    return f"{_all_models_met(confidence)}{low}{held}. {_describe_tightest(confidence)}"


def _describe_late(late: Sequence[ExpectedResponse], total: str) -> str:
    """Models that exceed a limit; if none surely does, those that may. `total`: out of how many models."""
    exceeding = [response for response in late if response.exceeds]
    those = exceeding or late
    verb = "may exceed" if not exceeding else "exceeds" if len(those) == 1 else "exceed"
    its = "its limit" if len(those) == 1 else "their limits"
    return f"{len(those)} of {total} {verb} {its}: {_list_late(those)}"


def _list_late(late: Sequence[ExpectedResponse]) -> str:
    """Models with growing queues, then the others, worst first."""
    growing = [response.model for response in late if response.response_ms is None]
    parts = []
    if growing:
        queues, verb = ("queue", "grows") if len(growing) == 1 else ("queues", "grow")
        parts.append(f"the {queues} of {format_names(growing)} {verb} without end")
    rest = [response for response in late if response.response_ms is not None]
    rest.sort(key=lambda response: -(response.response_ms or 0.0) / response.limit_ms)
    if rest:
        parts.append(format_names([_format_response(response) for response in rest]))
    return "; ".join(parts)


def _format_response(response: ExpectedResponse) -> str:
    width = "" if response.exceeds else f" ± {_format_ms(response.width_ms)}"
    if response.high_ms is not None and not response.exceeds:
        width = f", up to {_format_ms(response.high_ms)} as the host changes its speed"
    return (
        f"{response.model} p{response.percentile:g} {_format_ms(response.response_ms)}{width} of "
        f"{_format_ms(response.limit_ms)} ms"
    )


def _format_ms(value: float | None) -> str:
    """Three significant figures."""
    return "n/a" if value is None else f"{float(f'{value:.3g}'):.10g}"


def _count_of_models(number: int, total: int) -> str:
    return f"{number} of {total} model{'' if total == 1 else 's'}"


def _all_models_met(confidence: PlanConfidence) -> str:
    total = len(confidence.models)
    return (
        f"All {total} models get their demand"
        if total > 1
        else f"{confidence.models[0].name} gets its demand"
    )


def _worst_first(models: Iterable[ModelConfidence]) -> list[ModelConfidence]:
    return sorted(models, key=lambda model: (model.share, model.name))


def _format_shares(models: Sequence[ModelConfidence]) -> str:
    return format_names(
        [
            f"{model.name} {format_share(model.share) if model.throughput_rps else 'not served'}"
            for model in models
        ]
    )


def _describe_tightest(confidence: PlanConfidence) -> str:
    model = _worst_first(confidence.models)[0]
    return f"Tightest: {model.name} at {float(f'{model.share:.3g}'):.10g} × its demand."
