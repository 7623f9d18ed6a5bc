"""Summary figures of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from torchsplit_core.values import PlanOutcome


@dataclass(frozen=True, slots=True)
class PlanTotals:
    """`least` is the smallest normalised throughput T / (weight · demand), `total_rps` the requests/s of all models.

    Both are None if the plan serves no model.
    """

    least: float | None
    total_rps: float | None
    gpus_used: int
    slices: int


def totals_of(plan: PlanOutcome) -> PlanTotals | None:
    """The figures of a plan; None for an outcome without one."""
    if plan.status not in ("optimal", "feasible"):
        return None
    return PlanTotals(
        min((model.normalised for model in plan.models), default=None),
        sum(model.throughput_rps for model in plan.models) if plan.models else None,
        sum(gpu.used for gpu in plan.gpus),
        sum(len(gpu.slices) for gpu in plan.gpus),
    )
