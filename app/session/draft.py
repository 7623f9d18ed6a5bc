"""The draft of a scenario: the one request that the inputs and offers of the Plan page change.

Each tab of a browser edits its own draft. The session stores every edit with the scenario at once, so that a reload
shows it, and can undo it. The scenario's request stays as stored until the user keeps the draft.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import streamlit as st

from app.components import browser_tab
from app.session import cuts
from app.session.workspace import read_all
from torchsplit_core import workflow
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.difference import RequestChange, difference
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest, Profile
from torchsplit_core.workspace.drafts import DraftAuthor, DraftStore, StoredDraft
from torchsplit_core.workspace.faults import StoreFault
from torchsplit_core.workspace.store import Workspace

MOST_STEPS = 50
"""How many edits of a draft the user can undo."""
ONE_STEP_S = 2.0
"""Edits of the same fields within so many seconds are one step: a slider reports every place that it passes."""


@dataclass(frozen=True, slots=True)
class UndoStep:
    """An edit to undo: the draft before it (None where there was none), the fields it changed, when (monotonic s)."""

    before: Draft | None
    fields: frozenset[str]
    at: float


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft as a session has it.

    `content` is the part that the store has once `saved` is true. `fault` says why an input is not in it.
    """

    content: StoredDraft
    fault: str = ""
    saved: bool = False

    @property
    def request(self) -> PlanRequest:
        """The edited request."""
        return self.content.request

    @property
    def plan(self) -> PlanOutcome | None:
        """The plan that a user chose as the draft, else None."""
        return self.content.plan


def load_draft(workspace: Workspace, name: str, stored: PlanRequest | None) -> Draft | None:
    """This tab's draft of the scenario: the session's, else the stored one; None where it equals the request."""
    key = _key(workspace, name)
    if stored is None:
        return None
    if key not in st.session_state:
        stored_draft = DraftStore(workspace, name).load(browser_tab.identity())
        st.session_state[key] = (
            None if stored_draft is None else Draft(_with_engines(stored_draft), saved=True)
        )
    draft: Draft | None = st.session_state[key]
    if draft is not None and draft.plan is None and draft.request == stored and not draft.fault:
        # This tab or another kept it: History offers the way back.
        _drop(workspace, name)
        st.session_state.pop(_steps_key(workspace, name), None)
        return None
    return draft


def change(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    edited: PlanRequest,
    *,
    plan: PlanOutcome | None = None,
    origin: str = "",
) -> None:
    """Make the edited request the draft, with figures from the workspace's profiles for its new GPU types.

    `plan` is a plan of it that the user chose, and `origin` where it comes from.
    """
    edited = workflow.with_engine_points(with_points(workspace, edited, stored))
    _set(workspace, name, stored, edited, plan, origin)


def set_fault(workspace: Workspace, name: str, stored: PlanRequest, fault: str) -> None:
    """Note why an input makes no sense: the draft stays without it. An empty fault clears the note."""
    draft = load_draft(workspace, name, stored)
    if draft is None:
        draft = Draft(StoredDraft(request_hash(stored), stored), saved=True)
    if draft.fault != fault:
        st.session_state[_key(workspace, name)] = replace(draft, fault=fault)


def save(workspace: Workspace, name: str) -> None:
    """Store a draft that the disk refused when the user edited it. Raises StoreFault where the disk refuses again."""
    draft = st.session_state.get(_key(workspace, name))
    # Another tab may have deleted the scenario: a new one may get its name, so nothing is stored.
    if isinstance(draft, Draft) and not draft.saved and workspace.find("plan_request", name) is not None:
        DraftStore(workspace, name).save(browser_tab.identity(), draft.content)
        st.session_state[_key(workspace, name)] = replace(draft, saved=True)


def discard(workspace: Workspace, name: str) -> None:
    """Forget the draft and show the inputs as stored; `undo` brings it back."""
    draft = st.session_state.get(_key(workspace, name))
    if isinstance(draft, Draft):
        _push_undo(workspace, name, draft, frozenset())
    _drop(workspace, name)


def finish(workspace: Workspace, name: str) -> None:
    """Forget the draft and its steps once the scenario has it: History has the way back."""
    st.session_state.pop(_steps_key(workspace, name), None)
    _drop(workspace, name)


def undo(workspace: Workspace, name: str, stored: PlanRequest) -> None:
    """Take back the last step: an edit, or discarding the draft."""
    steps = _steps(workspace, name)
    if not steps:
        return
    *left, last = steps
    st.session_state[_steps_key(workspace, name)] = left
    if last.before is None or (last.before.request == stored and last.before.plan is None):
        _drop(workspace, name)
        return
    _put(workspace, name, replace(last.before, fault=""))


def can_undo(workspace: Workspace, name: str) -> bool:
    """Whether there is a step to take back."""
    return bool(_steps(workspace, name))


def unload(workspace: Workspace, name: str) -> None:
    """Forget what this session has of the draft: another scenario may get the name."""
    for key in (_key(workspace, name), _steps_key(workspace, name)):
        st.session_state.pop(key, None)


def other_drafts(
    workspace: Workspace, name: str, stored: PlanRequest, draft: Draft | None
) -> tuple[StoredDraft, ...]:
    """The drafts of other tabs that differ from the stored request and from this tab's draft."""
    current = ((stored, None), None if draft is None else (draft.request, draft.plan))
    drafts = DraftStore(workspace, name).others(browser_tab.identity())
    return tuple(other for other in drafts if (other.request, other.plan) not in current)


def other_authors(workspace: Workspace, name: str) -> tuple[DraftAuthor, ...]:
    """Who else has a draft, the latest edit first; this skips their requests, which take long to read."""
    return DraftStore(workspace, name).authors(browser_tab.identity())


def take_over(workspace: Workspace, name: str, other: StoredDraft) -> None:
    """Copy another tab's draft into this tab."""
    _put(workspace, name, Draft(replace(_with_engines(other), owner=_owner(), edited=time.time())))


def changes(draft: Draft, stored: PlanRequest) -> tuple[RequestChange, ...]:
    """What the draft changes of the stored request."""
    return () if draft.request is stored else difference(stored, draft.request)


def changed_elsewhere(draft: Draft, stored: PlanRequest) -> bool:
    """Whether another tab or a job changed the stored request since this draft began."""
    return draft.content.ground_sha256 != request_hash(stored)


def stored_profiles(workspace: Workspace) -> list[Profile]:
    """Every profile of the workspace: those stored under their model's name first, newest first."""
    profiles: dict[str, Profile] = read_all(workspace, "profile")
    return sorted(profiles.values(), key=lambda profile: profiles.get(profile.source) is not profile)


def with_points(workspace: Workspace, edited: PlanRequest, stored: PlanRequest) -> PlanRequest:
    """The edited request with points for its new GPU types; the same request where it has none."""
    if {(entry.type, entry.mig) for entry in edited.gpus} <= {
        (entry.type, entry.mig) for entry in stored.gpus
    }:
        return edited
    profiles = edit.profiles_of(edited, stored_profiles(workspace))
    return edit.with_points(edited, profiles, cuts.offers(workspace))


def _with_engines(draft: StoredDraft) -> StoredDraft:
    """The draft with the engines of its LLMs as points."""
    return replace(draft, request=workflow.with_engine_points(draft.request))


def _set(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    edited: PlanRequest,
    plan: PlanOutcome | None,
    origin: str,
) -> None:
    before = load_draft(workspace, name, stored)
    was = stored if before is None else before.request
    if edited != was or plan is not None or (before is not None and before.plan is not None):
        fields = frozenset(change.what for change in difference(was, edited))
        _push_undo(workspace, name, before, fields)
    if edited == stored and plan is None:
        _drop(workspace, name)
        return
    base_sha256 = request_hash(stored) if before is None else before.content.ground_sha256
    _put(workspace, name, Draft(StoredDraft(base_sha256, edited, plan, origin, _owner(), time.time())))


def _put(workspace: Workspace, name: str, draft: Draft) -> None:
    """Make it the draft, and store it before the page draws; `save` reports what the disk refuses."""
    st.session_state[_key(workspace, name)] = replace(draft, saved=False)
    with contextlib.suppress(StoreFault):
        save(workspace, name)


def _push_undo(workspace: Workspace, name: str, before: Draft | None, fields: frozenset[str]) -> None:
    """Add a step to undo; a further move of the same slider joins the last step."""
    steps, now = _steps(workspace, name), time.monotonic()
    if steps and fields and steps[-1].fields == fields and now - steps[-1].at < ONE_STEP_S:
        steps = [*steps[:-1], replace(steps[-1], at=now)]
    else:
        steps = [*steps, UndoStep(before, fields, now)]
    st.session_state[_steps_key(workspace, name)] = steps[-MOST_STEPS:]


def _steps(workspace: Workspace, name: str) -> Sequence[UndoStep]:
    steps: Sequence[UndoStep] = st.session_state.get(_steps_key(workspace, name), [])
    return steps


def _steps_key(workspace: Workspace, name: str) -> str:
    return f"steps of the draft {browser_tab.identity()} {workspace.id} {name}"


def _owner() -> str:
    """The name of the user who is logged in; empty where the server asks for no login."""
    return str(st.user.get("name") or st.user.get("email") or "") if st.user.get("is_logged_in") else ""


def _drop(workspace: Workspace, name: str) -> None:
    if st.session_state.get(_key(workspace, name)) is not None:
        DraftStore(workspace, name).delete(browser_tab.identity())
    st.session_state[_key(workspace, name)] = None


def _key(workspace: Workspace, name: str) -> str:
    return f"draft {browser_tab.identity()} {workspace.id} {name}"
