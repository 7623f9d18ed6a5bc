"""Whether a plan gives what is asked of it, in one line and one colour; told once for pages and report.

The colour is that of the answer, never that of the search: a proven plan may serve nobody. No streamlit in here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from app.format.badges import Colour
from app.format.numbers import THIN, short
from torchsplit_core.planning.request.coverage import without_figures
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.planning.sureness.verdict import ModelSureness, Sureness
from torchsplit_core.planning.sureness.words import MOST_NAMES, low_percent, share_percent
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanOutcome, PlanRequest

Level = Literal["met", "met at nominal", "not met", "not known"]
COLOURS: Mapping[Level, Colour] = {
    "met": "green",
    "met at nominal": "yellow",
    "not known": "yellow",
    "not met": "red",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether demands, minima and limits are met, and that in words."""

    level: Level
    text: str

    @property
    def colour(self) -> Colour:
        """Green only where everything asked is met."""
        return COLOURS[self.level]


def verdict_of(request: PlanRequest | None, plan: PlanOutcome, found: Sureness | None) -> Verdict:
    """The verdict on a plan of this request; `found` is how sure it is, None where the plan is of another request."""
    if plan.status == "infeasible":
        return Verdict("not met", "No plan gives what is asked on this fleet; that is proven.")
    if plan.status == "timeout":
        return Verdict("not met", "Nothing is met: no plan was found in the time given.")
    if request is None:
        return _unknown("the request of this plan is not here")
    if found is None:
        return _unknown("the plan answers an earlier request")
    late = _late(request, plan)
    if late:
        return Verdict("not met", f"{_count(len(late), found)} over the service-time limit: {named(late)}.")
    if goal_of(request).by_cost and any(model.min_throughput_rps for model in request.models):
        return _minima(request, found, plan)
    return _demands(request, found, plan)


def _unknown(why: str) -> Verdict:
    return Verdict("not known", f"Whether every model gets its demand is not known: {why}.")


def _demands(request: PlanRequest, found: Sureness, plan: PlanOutcome) -> Verdict:
    total = len(found.models)
    if not any(model.throughput_rps for model in found.models):
        return Verdict("not met", f"No model is served.{_for_want_of_figures(request)}")
    if not found.meets:
        less = _worst_first(model for model in found.models if not model.meets)
        verb = "does not get its demand" if len(less) == 1 else "do not get their demand"
        # Who is short is told of this plan: while a better one is looked for, they may become fewer.
        open_ = " A better plan is not ruled out." if plan.status == "feasible" else ""
        return Verdict(
            "not met",
            f"{_of(len(less), total)} {verb}: {_shares(less)}.{_for_want_of_figures(request)}{open_}",
        )
    every = f"All {total} models get their demand" if total > 1 else f"{found.models[0].name} gets its demand"
    if not found.meets_low:
        failing = [f"{model.name} {low_percent(model)}" for model in found.failing_low]
        return Verdict(
            "met at nominal",
            f"{every} at the nominal figures, but at their low end {len(failing)} of {total}"
            f" {'does' if len(failing) == 1 else 'do'} not: {named(failing)}. {_tightest(found)}",
        )
    low = "" if found.without_interval else ", also at the low end of the figures"
    return Verdict("met", f"{every}{low}. {_tightest(found)}")


def _minima(request: PlanRequest, found: Sureness, plan: PlanOutcome) -> Verdict:
    """Fewest GPUs owe the minima alone: demands that are not met are said, and are not what was asked of the plan."""
    least = {model.name: model.min_throughput_rps or model.demand_rps for model in request.models}
    short_of = [
        model
        for model in found.models
        if model.throughput_rps < least[model.name] and not equal(model.throughput_rps, least[model.name])
    ]
    if short_of or found.meets:
        return _demands(request, found, plan)
    less = _worst_first(model for model in found.models if not model.meets)
    verb = "gets" if len(less) == 1 else "get"
    return Verdict(
        "met at nominal",
        f"Every minimum is met, but {_of(len(less), len(found.models))} {verb} less than the demand:"
        f" {_shares(less)}.",
    )


def _for_want_of_figures(request: PlanRequest) -> str:
    """Where that is why a model is not served."""
    bare, fleet = without_figures(request), ", ".join(dict.fromkeys(entry.type for entry in request.gpus))
    if not bare:
        return ""
    who = "No model has"
    if len(bare) < len(request.models):
        who = f"{named(bare)} {'has' if len(bare) == 1 else 'have'} no"
    return f" {who} figures for {fleet}."


def _late(request: PlanRequest, plan: PlanOutcome) -> list[str]:
    limits = {model.name: model.max_latency_ms for model in request.models}
    found = []
    for model in plan.models:
        limit = limits.get(model.name)
        if limit is None or model.latency_ms is None or model.latency_ms <= limit:
            continue
        if not equal(model.latency_ms, limit):
            found.append(f"{model.name} {short(model.latency_ms)} of {short(limit, 'ms')}")
    return found


def _count(number: int, found: Sureness) -> str:
    return f"{_of(number, len(found.models))} {'is' if number == 1 else 'are'}"


def _of(number: int, total: int) -> str:
    return f"{number} of {total} model{'' if total == 1 else 's'}"


def _worst_first(models: Iterable[ModelSureness]) -> list[ModelSureness]:
    return sorted(models, key=lambda model: (model.share, model.name))


def _shares(models: Sequence[ModelSureness]) -> str:
    return named(
        [f"{one.name} {share_percent(one.share) if one.throughput_rps else 'not served'}" for one in models]
    )


def named(told: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(told) - MOST_NAMES
    return ", ".join(told[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _tightest(found: Sureness) -> str:
    model = _worst_first(found.models)[0]
    return f"Tightest: {model.name} at {short(model.share)}{THIN}× its demand."
