"""The price of each step from the freest relaxation down to the plan, at the objective's first level."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.explanation.probes import SensitivityProbe
from torchsplit_core.planning.explanation.relaxation_bound import RelaxationBound
from torchsplit_core.planning.outcome.levels import Levels, known_equal
from torchsplit_core.values import PlanOutcome, PriceStep


def price_steps(
    probe: SensitivityProbe, outcome: PlanOutcome, relaxation: RelaxationBound | None
) -> tuple[PriceStep, ...]:
    """relaxed → (pooled → packed →) plan, with the best plan of the other sharing mode."""
    request, before = probe.request, probe.before
    sign = -1.0 if probe.negated else 1.0
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
    if request.sharing == "exclusive":
        fractional = probe.first_level(replace(request, sharing="fractional"), relaxes=True)
        if fractional is not None:
            # Whole slices are shares of 1, so this plan is also one with sharing.
            value = max(fractional.values[0], before.values[0])
            steps.append(step("shared", value, *_bound_and_proof(fractional, value, base)))
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
    exclusive = probe.first_level(
        replace(request, sharing="exclusive", max_tenants_per_slice=None), relaxes=False
    )
    if exclusive is not None and exclusive.feasible:
        steps.append(
            step("whole_slices", exclusive.values[0], *_bound_and_proof(exclusive, exclusive.values[0], base))
        )
    return tuple(steps)


def _bound_and_proof(levels: Levels, value: float, base: float | None) -> tuple[float | None, bool]:
    limit = levels.bound_of(0)
    known = [item for item in (limit, base) if item is not None and item != float("inf")]
    bound = max(value, min(known)) if known else None
    return bound, known_equal(value, bound)
