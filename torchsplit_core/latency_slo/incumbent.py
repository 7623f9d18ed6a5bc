"""The best plan so far while a search for the same request continues: what it leaves open, and what replaces it."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.latency_slo.slo_check import limited_models
from torchsplit_core.planning.infeasibility.notes import unsettled_notes
from torchsplit_core.planning.manual.what_if import is_better
from torchsplit_core.planning.request.objective import goal_of, reached_levels
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.values import PlanOutcome, PlanRequest, tenants_on


def is_settled(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether a further search can add nothing: the plan is proven optimal, and simulated if responses are limited; or
    infeasibility is proven, with its reasons."""
    if outcome.status == "infeasible":
        return not unsettled_notes(outcome)
    return outcome.status == "optimal" and is_simulated(request, outcome)


def is_simulated(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether every model with a limited response time has simulated responses in the plan, and every engine times."""
    waits = {model.name for model in limited_models(request)}
    if any(model.response_ms is None for model in outcome.models if model.name in waits):
        return False
    # Engines without steps are known by measured points, which stand for a simulation.
    engines = {t.model for *_, t in tenants_on(outcome.gpus) if t.engine is not None and t.engine.step}
    return all(model.output_tokens_per_s is not None for model in outcome.models if model.name in engines)


def update_incumbent(request: PlanRequest, incumbent: PlanOutcome, candidate: PlanOutcome) -> PlanOutcome:
    """The plan to keep after a further search: `candidate`, unless it is worse than `incumbent`.

    An incumbent that stays takes over the bound that the search proved.
    """
    if candidate.status == "optimal" or not is_simulated(request, incumbent):
        return candidate
    if not candidate.gpus:
        if incumbent.gpus or candidate.status == "timeout":
            return incumbent
        # If the request has no plan, the longer search usually gives better reasons.
        settled = incumbent.status == "infeasible" and len(unsettled_notes(incumbent)) < len(
            unsettled_notes(candidate)
        )
        return incumbent if settled else candidate
    if not incumbent.gpus or not is_better(request, incumbent, candidate):
        return candidate
    return _with_proof(request, incumbent, candidate)


def _with_proof(request: PlanRequest, incumbent: PlanOutcome, candidate: PlanOutcome) -> PlanOutcome:
    """The incumbent with what the candidate's search proved: its bound, and its proven levels if both have them."""
    goal, incumbent_value, candidate_value = goal_of(request), incumbent.objective, candidate.objective
    if (
        incumbent_value.value is None
        or candidate_value.bound is None
        or candidate_value.proven_levels < incumbent_value.proven_levels
    ):
        return incumbent
    values, candidate_values = reached_levels(incumbent_value), reached_levels(candidate_value)
    proven = candidate_value.proven_levels
    if not all(
        equal(a, b) for a, b in zip(values[:proven], candidate_values[:proven], strict=True)
    ) or proven >= len(values):
        return incumbent
    # The bound applies to the first level that is not proven.
    also = (
        (incumbent_value.bound,)
        if incumbent_value.bound is not None and incumbent_value.proven_levels == proven
        else ()
    )
    tight = goal.clamp_bound(goal.tightest_bound(candidate_value.bound, *also), values[proven])
    proof = replace(incumbent_value, bound=tight, gap=goal.gap(values[proven], tight), proven_levels=proven)
    return replace(incumbent, objective=proof)
