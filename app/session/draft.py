"""The draft of a scenario: the one request that tables, sliders and offers of the Plan page change.

Each tab of a browser edits its own; it is stored with the scenario at the end of each run, so that a reload finds it.
What is stored as the scenario's request stays until the draft is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from app.components import tab
from app.session import cuts
from app.session.workspace import read_all
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.difference import RequestChange, difference
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest, Profile
from torchsplit_core.workspace.drafts import DraftStore, KeptDraft
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft as a session has it.

    `kept` is what is stored of it, `seed` the request that the tables were drawn from: it stays while edits come
    from them, so that they are not drawn anew under the user's hand. `fault` says why an edit of a table is not in
    it. `saved`: it is in the store.
    """

    kept: KeptDraft
    seed: PlanRequest
    fault: str = ""
    saved: bool = False

    @property
    def request(self) -> PlanRequest:
        """The edited request."""
        return self.kept.request

    @property
    def plan(self) -> PlanOutcome | None:
        """The plan that somebody chose, where the draft is one."""
        return self.kept.plan


def of(workspace: Workspace, name: str, stored: PlanRequest | None) -> Draft | None:
    """This tab's draft of the scenario: the session's, else the stored one. None where nothing differs from what is
    stored."""
    key = _key(workspace, name)
    if stored is None:
        return None
    if key not in st.session_state:
        found = DraftStore(workspace, name).load(tab.identity())
        st.session_state[key] = None if found is None else Draft(found, found.request, saved=True)
    draft: Draft | None = st.session_state[key]
    if draft is not None and draft.plan is None and draft.request == stored and not draft.fault:
        # It was kept, here or elsewhere, or edited back.
        _drop(workspace, name, draft)
        return None
    return draft


def change(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    edited: PlanRequest,
    *,
    plan: PlanOutcome | None = None,
    said: str = "",
) -> None:
    """Make this the draft: the edited request, with figures for what is new in it from the workspace's profiles.

    `plan` is a plan of it that somebody chose, and `said` whose it is. The tables are drawn anew.
    """
    edited = with_figures(workspace, edited, stored)
    _set(workspace, name, stored, edited, edited, plan, said)
    _turn(workspace, name)


def change_by_table(workspace: Workspace, name: str, stored: PlanRequest, edited: PlanRequest) -> bool:
    """Make what the tables hold the draft, and leave them as they are; whether that changed anything."""
    draft = of(workspace, name, stored)
    edited = with_figures(workspace, edited, stored)
    now = stored if draft is None else draft.request
    if edited == now and not (draft and draft.fault):
        return False
    _set(workspace, name, stored, edited, draft.seed if draft else stored, None, "")
    return True


def drawn_anew(workspace: Workspace, name: str, draft: Draft) -> Draft:
    """The draft for tables that forgot their edits, since another page was open: they begin with what it holds."""
    found = replace(draft, seed=draft.request)
    st.session_state[_key(workspace, name)] = found
    return found


def tell_fault(workspace: Workspace, name: str, stored: PlanRequest, fault: str) -> bool:
    """An edit of a table makes no sense: the draft stays without it, and says so; whether that is news."""
    draft = of(workspace, name, stored)
    if draft is None:
        draft = Draft(KeptDraft(request_hash(stored), stored), stored, saved=True)
    if draft.fault == fault:
        return False
    st.session_state[_key(workspace, name)] = replace(draft, fault=fault)
    return True


def save(workspace: Workspace, name: str) -> None:
    """Store the draft where this run changed it: at the end of a page, so that nobody waits for the disk."""
    draft = st.session_state.get(_key(workspace, name))
    if isinstance(draft, Draft) and not draft.saved:
        DraftStore(workspace, name).save(tab.identity(), draft.kept)
        st.session_state[_key(workspace, name)] = replace(draft, saved=True)


def discard(workspace: Workspace, name: str) -> None:
    """Forget the draft; tables and sliders stand as stored."""
    _drop(workspace, name, st.session_state.get(_key(workspace, name)))
    for key in (_turns(workspace, name), _ends(workspace, name)):
        st.session_state[key] = st.session_state.get(key, 0) + 1


def unload(workspace: Workspace, name: str) -> None:
    """Forget what this session knows of the draft: another scenario may get the name."""
    st.session_state.pop(_key(workspace, name), None)


def others(
    workspace: Workspace, name: str, stored: PlanRequest, draft: Draft | None
) -> tuple[KeptDraft, ...]:
    """The drafts of other tabs that are neither what is stored nor this tab's."""
    here = ((stored, None), None if draft is None else (draft.request, draft.plan))
    found = DraftStore(workspace, name).others(tab.identity())
    return tuple(one for one in found if (one.request, one.plan) not in here)


def take_over(workspace: Workspace, name: str, found: KeptDraft) -> None:
    """Make a copy of another tab's draft this one's; the tables are drawn anew."""
    st.session_state[_key(workspace, name)] = Draft(found, found.request)
    _turn(workspace, name)


def changes(draft: Draft, stored: PlanRequest) -> tuple[RequestChange, ...]:
    """What the draft changes of the stored request."""
    return () if draft.request is stored else difference(stored, draft.request)


def elsewhere(draft: Draft, stored: PlanRequest) -> bool:
    """Whether the stored request was changed, in another tab or by other work, since the draft was begun."""
    return draft.kept.ground_sha256 != request_hash(stored)


def seed(draft: Draft | None, stored: PlanRequest) -> PlanRequest:
    """The request that the tables show before their own edits."""
    return stored if draft is None else draft.seed


def table_mark(workspace: Workspace, name: str, shown: PlanRequest) -> str:
    """A part of the tables' keys: another one has them drawn anew."""
    return f"{name} {request_hash(shown)[:12]} {st.session_state.get(_turns(workspace, name), 0)}"


def slider_mark(workspace: Workspace, name: str, stored: PlanRequest) -> str:
    """A part of the sliders' keys: another stored request, or a way back, is another ground."""
    return (
        f"{workspace.id} {name} {request_hash(stored)[:12]} {st.session_state.get(_ends(workspace, name), 0)}"
    )


def stored_profiles(workspace: Workspace) -> list[Profile]:
    """Every profile of the workspace: a model's own first, then others of it, newest first."""
    found: dict[str, Profile] = read_all(workspace, "profile")
    return sorted(found.values(), key=lambda profile: found.get(profile.source) is not profile)


def with_figures(workspace: Workspace, edited: PlanRequest, stored: PlanRequest) -> PlanRequest:
    """The edited request with points for GPU types that are new in it; itself where none is."""
    if {(one.type, one.mig) for one in edited.gpus} <= {(one.type, one.mig) for one in stored.gpus}:
        return edited
    profiles = edit.profiles_of(edited, stored_profiles(workspace))
    return edit.with_points(edited, profiles, cuts.offers(workspace))


def _set(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    edited: PlanRequest,
    drawn: PlanRequest,
    plan: PlanOutcome | None,
    said: str,
) -> None:
    before = of(workspace, name, stored)
    if edited == stored and plan is None:
        if before is not None:
            _drop(workspace, name, before)
        return
    ground = request_hash(stored) if before is None else before.kept.ground_sha256
    st.session_state[_key(workspace, name)] = Draft(KeptDraft(ground, edited, plan, said), drawn)


def _drop(workspace: Workspace, name: str, draft: Draft | None) -> None:
    st.session_state[_key(workspace, name)] = None
    if draft is not None:
        DraftStore(workspace, name).forget(tab.identity())


def _key(workspace: Workspace, name: str) -> str:
    return f"draft {tab.identity()} {workspace.id} {name}"


def _turn(workspace: Workspace, name: str) -> None:
    turns = _turns(workspace, name)
    st.session_state[turns] = st.session_state.get(turns, 0) + 1


def _turns(workspace: Workspace, name: str) -> str:
    return f"turns of the tables {workspace.id} {name}"


def _ends(workspace: Workspace, name: str) -> str:
    return f"ends of drafts {workspace.id} {name}"
