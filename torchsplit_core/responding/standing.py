"""A plan that stands while a search for the same request goes on: what it leaves open, and what replaces it."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.planning.infeasibility.notes import open_reasons
from torchsplit_core.planning.manual.what_if import better
from torchsplit_core.planning.request.objective import goal_of
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
        # Of a request without a plan the longer search gives the better reasons.
        return standing if standing.gpus or found.status == "timeout" else found
    if not standing.gpus or not better(request, standing, found):
        return found
    goal, was, now = goal_of(request), standing.objective, found.objective
    if was.value is None or was.proven_levels or now.proven_levels or now.bound is None:
        return standing
    bounds = (now.bound,) if was.bound is None else (was.bound, now.bound)
    tight = goal.held(goal.tightest(*bounds), was.value)
    return replace(standing, objective=replace(was, bound=tight, gap=goal.gap(was.value, tight)))
