"""Ranks known plans as warm starts of an edited request, by their own figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.request.objective import goal_of, objective_levels
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanOutcome, PlanRequest


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """Of a plan: GPUs in use by type, and requests/s and service time (ms) by model."""

    used: Mapping[str, int]
    rates_rps: Mapping[str, float]
    latencies_ms: Mapping[str, float | None]

    def as_row(self) -> list[Any]:
        """For JSON."""
        return [dict(self.used), dict(self.rates_rps), dict(self.latencies_ms)]

    @classmethod
    def of_row(cls, row: list[Any]) -> PlanSummary:
        """From JSON."""
        return cls(*row)


def summarize(request: PlanRequest, outcome: PlanOutcome) -> PlanSummary:
    """The summary of a plan, empty for an outcome without one."""
    return PlanSummary(
        Counter(gpu.type for gpu in outcome.gpus if gpu.used),
        {model.name: model.throughput_rps for model in outcome.models},
        {model.name: model.latency_ms for model in outcome.models},
    )


def rank_warm_starts(request: PlanRequest, plans: Mapping[str, PlanSummary]) -> list[str]:
    """The keys of the plans, the most promising first.

    Feasible ones by value, then those with too many GPUs or a broken limit, by the number of excess GPUs.
    """
    fleet = Counter(gpu.type for gpu in list_gpus(request.gpus))
    better_first = 1.0 if goal_of(request).minimised else -1.0

    def rank(plan_summary: PlanSummary) -> tuple[int, int, list[float]]:
        surplus = sum((Counter(plan_summary.used) - fleet).values())
        rates = [plan_summary.rates_rps.get(model.name, 0.0) for model in request.models]
        objective_values = objective_levels(request, rates, float(sum(plan_summary.used.values())), 0.0)
        return (
            surplus,
            sum(_violations(request, plan_summary)),
            [better_first * value for value in objective_values],
        )

    return sorted((key for key, about in plans.items() if about.used), key=lambda key: rank(plans[key]))


def _violations(request: PlanRequest, plan_summary: PlanSummary) -> list[bool]:
    """For each model, whether the plan breaks its minimum or its service-time limit."""
    violated = []
    for model in request.models:
        rate, latency = plan_summary.rates_rps.get(model.name, 0.0), plan_summary.latencies_ms.get(model.name)
        least, limit = model.min_throughput_rps, model.max_latency_ms
        below = bool(least) and rate < (least or 0.0) and not equal(rate, least or 0.0)
        late = limit is not None and latency is not None and latency > limit and not equal(latency, limit)
        violated.append(below or late)
    return violated
