"""The words of a verdict: its sentences, and an answer for each question that it settles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from torchsplit_core.planning.request.coverage import without_figures
from torchsplit_core.planning.sureness.verdict import ModelSureness, Sureness
from torchsplit_core.planning.sureness.words import (
    low_percent,
    low_words,
    named,
    nominal_words,
    share_percent,
)
from torchsplit_core.responding.at_demand import Response
from torchsplit_core.responding.front import FrontLoad, fact_words
from torchsplit_core.values import PlannedModel, PlanRequest

Answer = Literal["yes", "no", "unknown", "not asked"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A question about a plan, the answer to it, and why."""

    question: str
    answer: Answer
    why: str = ""

    @property
    def words(self) -> str:
        """The answer with its reason."""
        return f"{self.answer} ({self.why})" if self.why else self.answer


def facts(
    found: Sureness,
    told: tuple[Response, ...] | str,
    late: Sequence[Response],
    excess: Sequence[str],
    unknown: Sequence[str],
    gone: Sequence[str],
    front: FrontLoad | None = None,
) -> tuple[Fact, ...]:
    """Demand, low end, response under load, memory; the front where its costs are known; who is not served, where
    somebody is not. None of nobody."""
    if len(gone) == len(found.models):
        return ()
    served = (Fact("Serves every model", "no", f"not served: {', '.join(gone)}"),) if gone else ()
    return (
        Fact("Meets its demand", "yes" if found.meets else "no", nominal_words(found)),
        Fact("Meets its demand even at the low end", found.low_end, low_words(found)),
        _under_load(told, late),
        _memory(excess, unknown),
        *(() if front is None else (_passes(front),)),
        *served,
    )


def _under_load(told: tuple[Response, ...] | str, late: Sequence[Response]) -> Fact:
    question = "Keeps its limits under load"
    if isinstance(told, str):
        return Fact(question, "unknown", told.removesuffix("."))
    if not told:
        return Fact(question, "not asked", "no model that is served has a limit")
    exceeding = [one for one in late if one.exceeds]
    if exceeding:
        return Fact(question, "no", _late(exceeding))
    return Fact(question, "unknown", f"too close to tell: {_late(late)}") if late else Fact(question, "yes")


def _passes(front: FrontLoad) -> Fact:
    passes = not any(model.short for model in front.models)
    return Fact("Passes the front", "yes" if passes else "no", fact_words(front))


def _memory(excess: Sequence[str], unknown: Sequence[str]) -> Fact:
    question = "Fits in memory"
    if excess:
        return Fact(question, "no", named(excess))
    if unknown:
        return Fact(question, "unknown", f"no memory figure for {named(unknown)}")
    return Fact(question, "yes")


def over_service_limit(request: PlanRequest, slow: Sequence[PlannedModel]) -> str:
    """Which batches take longer than they may."""
    limits = {model.name: model.max_latency_ms for model in request.models}
    told = [f"{one.name} {_ms(one.latency_ms)} of {_ms(limits[one.name])} ms" for one in slow]
    verb = "is" if len(slow) == 1 else "are"
    return f"{_of(len(slow), len(request.models))} {verb} over the service-time limit: {named(told)}."


def for_want_of_figures(request: PlanRequest) -> str:
    """Where that is why a model is not served."""
    bare, fleet = without_figures(request), ", ".join(dict.fromkeys(entry.type for entry in request.gpus))
    if not bare:
        return ""
    who = "No model has"
    if len(bare) < len(request.models):
        who = f"{named(bare)} {'has' if len(bare) == 1 else 'have'} no"
    return f" {who} figures for {fleet}."


def below_demand(found: Sureness) -> str:
    """Who gets less than the demand, the worst first."""
    less = _worst_first(model for model in found.models if not model.meets)
    verb = "does not get its demand" if len(less) == 1 else "do not get their demand"
    return f"{_of(len(less), len(found.models))} {verb}: {_shares(less)}."


def minima_alone(found: Sureness) -> str:
    """Every minimum is met and some demand is not."""
    less = _worst_first(model for model in found.models if not model.meets)
    verb = "gets" if len(less) == 1 else "get"
    return (
        f"Every minimum is met, but {_of(len(less), len(found.models))} {verb} less than the demand:"
        f" {_shares(less)}."
    )


def met_by_slices_alone(found: Sureness, short: str) -> str:
    """Every demand is met by the slices, and not all of it passes the front."""
    total = len(found.models)
    them = f"The slices give all {total} models" if total > 1 else f"The slices give {found.models[0].name}"
    return f"{them} the demand, but not all of it passes. {short}"


def more_late(late: Sequence[Response]) -> str:
    """Of models that get their demand, beside others that do not."""
    return f" Under load {_who_is_late(late, 'the others')}." if late else ""


def met_but_late(found: Sureness, late: Sequence[Response]) -> str:
    """Every demand is met, and not every limit holds once requests queue."""
    kept = "" if any(one.promised for one in late) else " Without queues every limit holds."
    return f"{_every(found)}, but under load {_who_is_late(late, str(len(found.models)))}.{kept}"


def met_at_nominal(found: Sureness, late: Sequence[Response]) -> str:
    """Every demand is met by the figures themselves, and not by their low end."""
    failing = [f"{model.name} {low_percent(model)}" for model in found.failing_low]
    under_load = f" Under load {_who_is_late(late, str(len(found.models)))}." if late else ""
    return (
        f"{_every(found)} at the nominal figures, but at their low end {len(failing)} of {len(found.models)}"
        f" {'does' if len(failing) == 1 else 'do'} not: {named(failing)}.{under_load} {_tightest(found)}"
    )


def met(found: Sureness, limits: int) -> str:
    """Every demand is met, and every limit if there are any."""
    low = ", also at the low end of the figures" if found.low_end == "yes" else ""
    held = ", and every limit holds under load" if limits else ""
    return f"{_every(found)}{low}{held}. {_tightest(found)}"


def _who_is_late(late: Sequence[Response], total: str) -> str:
    """Who exceeds a limit; where nobody surely does, who may. `total` says of how many models."""
    exceeding = [one for one in late if one.exceeds]
    those = exceeding or late
    verb = "may exceed" if not exceeding else "exceeds" if len(those) == 1 else "exceed"
    its = "its limit" if len(those) == 1 else "their limits"
    return f"{len(those)} of {total} {verb} {its}: {_late(those)}"


def _late(late: Sequence[Response]) -> str:
    """Queues that grow first, then the worst first."""
    growing = [one.model for one in late if one.response_ms is None]
    parts = []
    if growing:
        queues, verb = ("queue", "grows") if len(growing) == 1 else ("queues", "grow")
        parts.append(f"the {queues} of {named(growing)} {verb} without end")
    rest = [one for one in late if one.response_ms is not None]
    rest.sort(key=lambda one: -(one.response_ms or 0.0) / one.limit_ms)
    if rest:
        parts.append(named([_response(one) for one in rest]))
    return "; ".join(parts)


def _response(one: Response) -> str:
    width = "" if one.exceeds else f" ± {_ms(one.width_ms)}"
    if one.high_ms is not None and not one.exceeds:
        width = f", up to {_ms(one.high_ms)} as the host changes its speed"
    return f"{one.model} p{one.percentile:g} {_ms(one.response_ms)}{width} of {_ms(one.limit_ms)} ms"


def _ms(value: float | None) -> str:
    """Three significant figures."""
    return "n/a" if value is None else f"{float(f'{value:.3g}'):.10g}"


def _of(number: int, total: int) -> str:
    return f"{number} of {total} model{'' if total == 1 else 's'}"


def _every(found: Sureness) -> str:
    total = len(found.models)
    return f"All {total} models get their demand" if total > 1 else f"{found.models[0].name} gets its demand"


def _worst_first(models: Iterable[ModelSureness]) -> list[ModelSureness]:
    return sorted(models, key=lambda model: (model.share, model.name))


def _shares(models: Sequence[ModelSureness]) -> str:
    return named(
        [f"{one.name} {share_percent(one.share) if one.throughput_rps else 'not served'}" for one in models]
    )


def _tightest(found: Sureness) -> str:
    model = _worst_first(found.models)[0]
    return f"Tightest: {model.name} at {float(f'{model.share:.3g}'):.10g} × its demand."
