"""The plan of a draft: that of the plan cache if the request was answered before, else a quick verified one that
starts from the best known plans of similar requests. A session computes it once for each state of the draft."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import streamlit as st

from app.session.draft import Draft
from torchsplit_core.latency_slo.incumbent import is_settled, is_simulated, update_incumbent
from torchsplit_core.planning.manual.what_if import plan_with_starts, with_bound
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest
from torchsplit_core.workspace.faults import StoreFault
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Workspace

QUICK_S = 0.15
"""Seconds of search after an edit: for a verified plan, not its proof."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A request that is not stored and its quick plan; without a plan `fault` says why. `is_new`: not in the cache."""

    request: PlanRequest
    outcome: PlanOutcome | None
    fault: str = ""
    is_new: bool = False


def plan_draft(
    workspace: Workspace, name: str, draft: Draft | None, planned: PlanOutcome | None
) -> TrialPlan | None:
    """The quick plan of the draft; None without a draft. `planned` is the stored plan, one of the warm starts."""
    key = _key(workspace, name)
    if draft is None:
        st.session_state.pop(key, None)
        return None
    if draft.plan is not None:
        return TrialPlan(draft.request, draft.plan)
    last = st.session_state.get(key)
    if isinstance(last, TrialPlan) and last.request is draft.request:
        return last
    shown = last.outcome if isinstance(last, TrialPlan) else None
    attempted = plan_quickly(PlanCache(workspace), draft.request, tuple(filter(None, (shown, planned))))
    st.session_state[key] = attempted
    return attempted


def plan_quickly(known: PlanCache, edited: PlanRequest, starts: tuple[PlanOutcome, ...] = ()) -> TrialPlan:
    """The edited request with a verified plan, or a fault. `starts` are the plans to start from."""
    for start in starts:
        if start.request_sha256 == request_hash(edited):
            return TrialPlan(edited, start)
    try:
        return _best(known, edited, starts)
    except InputFault as fault:
        return TrialPlan(edited, None, str(fault))


def _best(known: PlanCache, edited: PlanRequest, starts: tuple[PlanOutcome, ...]) -> TrialPlan:
    known_plan = known.lookup(edited)
    if known_plan is not None and is_simulated(edited, known_plan):
        # Once its first level is proven, a short search could only find less.
        if is_settled(edited, known_plan) or known_plan.objective.proven_levels:
            return TrialPlan(edited, known_plan)
    else:
        known_plan = None
    outcome = _plan(edited, (*starts, *known.warm_starts(edited)))
    outcome = with_bound(edited, outcome, known.first_bound(edited))
    if known_plan is not None:
        outcome = update_incumbent(edited, known_plan, outcome)
    return TrialPlan(edited, outcome, is_new=True)


def _plan(edited: PlanRequest, starts: tuple[PlanOutcome, ...]) -> PlanOutcome:
    """A quick plan; with LLMs one whose engines keep their limits when they are simulated."""

    def quick(request: PlanRequest) -> PlanOutcome:
        return plan_with_starts(request, starts, QUICK_S)

    if all(model.llm is None for model in edited.models):
        return quick(edited)
    from torchsplit_core.engine_plans.engine_planner import plan_with_engines

    return plan_with_engines(edited, quick)


def remember_plan(workspace: Workspace, name: str) -> None:
    """Store the plan on screen in the cache, at the end of the page's run, when nobody waits for it."""
    shown = st.session_state.get(_key(workspace, name))
    if isinstance(shown, TrialPlan) and shown.is_new and shown.outcome is not None:
        st.session_state[_key(workspace, name)] = replace(shown, is_new=False)
        with contextlib.suppress(StoreFault):
            PlanCache(workspace).store(shown.request, shown.outcome)


def take_search_result(workspace: Workspace, name: str, request: PlanRequest, outcome: PlanOutcome) -> None:
    """Show the outcome of a longer search, unless it is worse than the plan on screen."""
    key = _key(workspace, name)
    shown = st.session_state.get(key)
    if isinstance(shown, TrialPlan) and shown.request is request and shown.outcome is not None:
        outcome = update_incumbent(request, shown.outcome, outcome)
    st.session_state[key] = TrialPlan(request, outcome)


def is_infeasible(workspace: Workspace, name: str) -> bool:
    """Whether the draft is proven infeasible."""
    shown = st.session_state.get(_key(workspace, name))
    return isinstance(shown, TrialPlan) and shown.outcome is not None and shown.outcome.status == "infeasible"


def _key(workspace: Workspace, name: str) -> str:
    return f"plan of the draft {workspace.id} {name}"
