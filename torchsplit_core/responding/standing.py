"""A plan that stands while a search for the same request goes on: what it leaves open, and what replaces it."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.infeasibility.notes import open_reasons
from torchsplit_core.planning.manual.what_if import better
from torchsplit_core.planning.request.objective import goal_of, reached
from torchsplit_core.planning.tolerance import equal
from torchsplit_core.responding.waiting import limited
from torchsplit_core.values import PlanOutcome, PlanRequest


def is_settled(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether a further search can say no more: the plan is proven, and simulated where responses are limited; or that
    there is none is proven, with its reasons."""
    if outcome.status == "infeasible":
        return not open_reasons(outcome)
    return outcome.status == "optimal" and is_simulated(request, outcome)


def is_simulated(request: PlanRequest, outcome: PlanOutcome) -> bool:
    """Whether every model of the plan with a limited response time has its simulated responses."""
    waits = {model.name for model in limited(request)}
    return all(model.response_ms is not None for model in outcome.models if model.name in waits)


def improved(request: PlanRequest, standing: PlanOutcome, found: PlanOutcome) -> PlanOutcome:
    """What a further search leaves of the plan that stands: what it found, unless that is worse.

    A better plan that stands takes over the bound that the search proved.
    """
    if found.status == "optimal" or not is_simulated(request, standing):
        return found
    if not found.gpus:
        if standing.gpus or found.status == "timeout":
            return standing
        # Of a request without a plan the longer search mostly gives the better reasons.
        settled = standing.status == "infeasible" and len(open_reasons(standing)) < len(open_reasons(found))
        return standing if settled else found
    if not standing.gpus or not better(request, standing, found):
        return found
    return _with_proof(request, standing, found)


def _with_proof(request: PlanRequest, standing: PlanOutcome, found: PlanOutcome) -> PlanOutcome:
    """The better plan that stands, with what the other search has proven: its bound, and levels that are the same."""
    goal, was, now = goal_of(request), standing.objective, found.objective
    if was.value is None or now.bound is None or now.proven_levels < was.proven_levels:
        return standing
    mine, other = reached(was), reached(now)
    proven = now.proven_levels
    if not all(equal(a, b) for a, b in zip(mine[:proven], other[:proven], strict=True)) or proven >= len(
        mine
    ):
        return standing
    # The bound speaks of the first level that is not proven.
    also = (was.bound,) if was.bound is not None and was.proven_levels == proven else ()
    tight = goal.held(goal.tightest(now.bound, *also), mine[proven])
    proof = replace(was, bound=tight, gap=goal.gap(mine[proven], tight), proven_levels=proven)
    return replace(standing, objective=proof)
