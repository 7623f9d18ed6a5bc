"""The quick verified plan of a draft, worked out once for each state of it in a session."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.session.draft import Draft
from torchsplit_core.planning.manual.what_if import plan_from
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.responding.standing import improved
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

QUICK_S = 0.15
"""Seconds of search behind an edit: a verified plan, not its proof."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A request that is not kept and its quick plan; without one `fault` says why."""

    request: PlanRequest
    outcome: PlanOutcome | None
    fault: str = ""


def trial(workspace: Workspace, name: str, draft: Draft | None, planned: PlanOutcome | None) -> Trial | None:
    """What the draft would give; None without one. `planned` is the stored plan, where the first search starts."""
    key = _key(workspace, name)
    if draft is None:
        st.session_state.pop(key, None)
        return None
    if draft.plan is not None:
        return Trial(draft.request, draft.plan)
    found = st.session_state.get(key)
    if isinstance(found, Trial) and found.request is draft.request:
        return found
    before = (found.outcome if isinstance(found, Trial) else None) or planned
    made = attempt(draft.request, before)
    st.session_state[key] = made
    return made


def attempt(edited: PlanRequest, before: PlanOutcome | None = None) -> Trial:
    """The edited request with a quick verified plan; what cannot be asked says why. `before`: what stands now."""
    if before is not None and before.request_sha256 == request_hash(edited):
        return Trial(edited, before)
    try:
        return Trial(edited, plan_from(edited, before, QUICK_S))
    except InputFault as fault:
        return Trial(edited, None, str(fault))


def searched(workspace: Workspace, name: str, asked: PlanRequest, found: PlanOutcome) -> None:
    """Take over what a longer search found, where that is no worse than what is on screen."""
    key = _key(workspace, name)
    shown = st.session_state.get(key)
    if isinstance(shown, Trial) and shown.request is asked and shown.outcome is not None:
        found = improved(asked, shown.outcome, found)
    st.session_state[key] = Trial(asked, found)


def _key(workspace: Workspace, name: str) -> str:
    return f"plan of the draft {workspace.id} {name}"
