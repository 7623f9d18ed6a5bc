"""The price of each step from the freest relaxation down to the plan, at the objective's first level."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.explanation.questions import Question
from torchsplit_core.planning.explanation.relaxation_bound import RelaxationBound
from torchsplit_core.planning.outcome.levels import Levels, known_equal
from torchsplit_core.planning.request.objective import goal_of
from torchsplit_core.values import PlanOutcome, PlanRequest, PriceStep


def other_sharing(request: PlanRequest) -> PlanRequest:
    """The request with slices shared if they are not, and the other way round."""
    if request.sharing == "exclusive":
        return replace(request, sharing="fractional")
    return replace(request, sharing="exclusive", max_tenants_per_slice=None)


def price_steps(
    outcome: PlanOutcome, before: Levels, relaxation: RelaxationBound | None, other: Question
) -> tuple[PriceStep, ...]:
    """relaxed → (pooled → packed →) plan, with the best plan of the `other` sharing mode."""
    sign = -1.0 if goal_of(outcome.objective).minimised else 1.0
    base = sign * relaxation.bound if relaxation is not None else None
    if base is not None and known_equal(base, before.values[0]):
        base = before.values[0]

    def step(name: str, value: float | None, bound: float | None, proven: bool) -> PriceStep:
        reached = value if value is not None else bound
        loss: float | None = None
        if base is not None and reached is not None:
            if reached >= base:
                loss = 0.0
            elif base:
                loss = (base - reached) / abs(base)
        figures = [None if figure is None else 0.0 + sign * figure for figure in (value, bound)]
        return PriceStep(name, figures[0], figures[1], loss, proven)  # type: ignore[arg-type]

    limit = before.bound_of(0)
    bounds = [item for item in (base, limit) if item is not None and item != float("inf")]
    plan_bound = min(bounds) if bounds else None
    plan = step("plan", before.values[0], plan_bound, known_equal(before.values[0], plan_bound))
    steps = [step("relaxed", None, base, True)] if base is not None else []
    levels = other.levels()
    if other.relaxes:
        if levels is not None:
            # Whole slices are shares of 1, so this plan is also one with sharing.
            value = max((*levels.values[:1], before.values[0]))
            steps.append(step("shared", value, *_bound_and_proof(levels, value, base)))
        return (*steps, plan)
    details = outcome.statistics.details
    pooled, packed = details.get("pooled_value"), details.get("packed_value")
    pooled_is_bound = details.get("pooled") == "optimal" or details.get("method") == "pooled"
    if isinstance(pooled, int | float) and pooled_is_bound:
        # It may bound a later level, if the first ones are at their caps.
        limit = sign * pooled if base is None else min(sign * pooled, base)
        steps.append(step("pooled", None, limit, True))
    if isinstance(packed, int | float):
        steps.append(step("packed", sign * packed, None, False))
    steps.append(plan)
    if levels is not None and levels.values:
        value = levels.values[0]
        steps.append(step("whole_slices", value, *_bound_and_proof(levels, value, base)))
    return tuple(steps)


def _bound_and_proof(levels: Levels, value: float, base: float | None) -> tuple[float | None, bool]:
    limit = levels.bound_of(0)
    known = [item for item in (limit, base) if item is not None and item != float("inf")]
    bound = max(value, min(known)) if known else None
    return bound, known_equal(value, bound)
