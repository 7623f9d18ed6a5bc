"""The bar that stays at the head of the Plan page: what the draft changes and brings, and the ways out of it."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from app.format.numbers import plain
from app.plan.draft import trial, words
from app.plan.draft.trial import Trial
from app.plan.summary import SOLVED
from app.plan.what_if import proof
from app.session import cuts, scenario
from app.session import draft as drafts
from app.session.draft import Draft
from app.session.thing import SCENARIO
from app.shell import frame
from app.shell.replan import plan_again
from torchsplit_core.planning.comparison.compare import compare
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.objective import owes_nothing
from torchsplit_core.responding.standing import is_settled
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace import named
from torchsplit_core.workspace.drafts import KeptDraft
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

MOST_LINES = 12
# Only while there is a draft: `:has` slows every page that it is on.
STYLE = """<style>[data-testid="stLayoutWrapper"]:has(> .st-key-draft-place) {
  position: sticky; top: 0; z-index: 6; background: var(--ground); }
/* Below the library's own head, which a narrow window shows. */
@media (max-width: 640px) { [data-testid="stLayoutWrapper"]:has(> .st-key-draft-place) { top: 3.5rem; }
  .st-key-draft-bar { padding: .4rem .6rem; } .st-key-draft-bar button { min-height: 2rem; padding-block: .1rem; } }
.st-key-draft-bar { border-inline-start: 4px solid light-dark(#0f766e, #2dd4bf); padding: .6rem .9rem; }
ul.changed { margin: 0; padding-inline-start: 1.1rem; font-size: .85rem; }
ul.changed s { opacity: .7; }</style>"""


def show(
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    planned: PlanOutcome | None,
    draft: Draft,
    tried: Trial,
) -> None:
    """The bar of a draft."""
    st.html(STYLE)
    with st.container(key="draft-bar", border=True, gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            told = words.changes_line(draft.kept.said, drafts.changes(draft, stored))
            st.markdown(f"**Draft** · {plain(told or 'an edit that cannot be taken over')}", width="stretch")
            _ways_out(workspace, name, stored, draft, tried)
        if gained := words.brings(planned, tried.outcome):
            st.caption(plain(gained))
        if drafts.elsewhere(draft, stored):
            st.warning(
                "The scenario was changed in another tab, or by other work, since this draft was begun. Keep "
                "stores the draft, and what stands now as a scenario of its own; Discard shows what stands now."
            )
        # Where no model is owed anything, the head of the page says so, with the way out.
        if (fault := draft.fault or tried.fault) and not owes_nothing(tried.request):
            st.error(plain(fault))


def search(workspace: Workspace, name: str, draft: Draft, tried: Trial) -> None:
    """How far the search for the draft is, while it may say more; nothing for a plan that was chosen."""
    if _is_open(draft, tried):
        st.fragment(_prove, run_every=proof.REST_S)(workspace, name, draft.request)


def is_searched(workspace: Workspace, name: str, draft: Draft, tried: Trial) -> bool:
    """Whether a search for the draft goes on, or begins as soon as the edits rest."""
    return _is_open(draft, tried) and proof.is_looked_for(workspace, name, draft.request)


def _is_open(draft: Draft, tried: Trial) -> bool:
    return tried.outcome is not None and draft.plan is None and not is_settled(draft.request, tried.outcome)


def _ways_out(workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, tried: Trial) -> None:
    faulty = bool(draft.fault) or owes_nothing(draft.request)
    label = "Keep and prove" if draft.plan is None else "Keep this plan"
    if st.button(label, type="primary", key="draft-keep", disabled=faulty):
        with frame.telling():
            _keep(workspace, name, stored, draft, tried)
    if st.button("Save as new scenario", key="draft-save-as", disabled=faulty):
        with frame.telling():
            _save_as(workspace, name, stored, draft, tried)
    if st.button("Discard", key="draft-discard"):
        proof.drop(workspace, name)
        drafts.discard(workspace, name)
        st.rerun()


def _keep(workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, tried: Trial) -> None:
    """Store what is on screen; only what its plan leaves open is searched on."""
    proof.drop(workspace, name)
    if draft.plan is not None:
        keep_plan(workspace, name, stored, draft.kept)
        st.rerun()
    asked = _checked(workspace, draft.request)
    if asked != draft.request:
        # So that the draft is what is stored a moment later, and ends by that.
        drafts.change(workspace, name, stored, asked)
    ground = asked if drafts.elsewhere(draft, stored) else stored
    plan_again(workspace, name, asked, ground=ground, shown=tried.outcome)


def keep_plan(workspace: Workspace, name: str, stored: PlanRequest, kept: KeptDraft) -> None:
    """Make a plan that somebody chose the scenario's; what stood is a version."""
    assert kept.plan is not None
    scenario.end_work(workspace, name)
    versions = VersionStore(workspace, name)
    versions.keep()
    if kept.request != stored:
        workspace.put("plan_request", name, kept.request)
    workspace.put("plan", name, kept.plan)
    versions.keep(kept.said)
    drafts.discard(workspace, name)


def _save_as(workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, tried: Trial) -> None:
    """The draft as a scenario of its own, which is proven; the one it was made of stands as before."""
    asked = draft.request if draft.plan is not None else _checked(workspace, draft.request)
    tail = words.changes_line(draft.kept.said, drafts.changes(draft, stored))[:60]
    new = named.free_name(workspace, named.SCENARIO, f"{name[:50]} · {tail}".strip(" ·"))
    proof.drop(workspace, name)
    drafts.discard(workspace, name)
    frame.say(f"The draft is the scenario {new}; {name} stands as it was.")
    if draft.plan is None:
        plan_again(workspace, new, asked, shown=tried.outcome)
    workspace.put("plan_request", new, asked)
    workspace.put("plan", new, draft.plan)
    VersionStore(workspace, new).keep(draft.kept.said)
    SCENARIO.choose(workspace, new)
    st.rerun()


def _checked(workspace: Workspace, asked: PlanRequest) -> PlanRequest:
    """The request as it would be stored. Raises InputFault, with nothing stored, where it is wrong."""
    profiles = edit.profiles_of(asked, drafts.stored_profiles(workspace))
    return edit.checked(edit.with_points(asked, profiles, cuts.offers(workspace)))


def plan_button(workspace: Workspace, name: str, stored: PlanRequest, planned: PlanOutcome | None) -> None:
    """Where the bar stands, while there is no draft: plan what is stored, unless nothing would come of it."""
    kind: Literal["primary", "secondary"] = "primary" if planned is None else "secondary"
    if not st.button("Plan", key="plan", type=kind, disabled=owes_nothing(stored)):
        return
    with frame.telling():
        answered = planned is not None and named.plan_answers(stored, planned)
        settled = answered and planned is not None and planned.status in ("optimal", "infeasible")
        if settled and _checked(workspace, stored) == stored:
            st.toast("Nothing has changed: this is the proven answer to the request as it stands.")
            return
        if answered:
            frame.say("Nothing has changed in the request: the search for the proof is made again.")
        plan_again(workspace, name, stored, ground=stored)


def differences(planned: PlanOutcome | None, tried: Trial) -> None:
    """What changes against the stored plan, in sentences."""
    if planned is None or tried.outcome is None or not {planned.status, tried.outcome.status} <= set(SOLVED):
        return
    lines = compare(planned, tried.outcome).lines
    if not lines:
        return
    st.caption(plain(lines[0]))
    label = f"What changes against the stored plan: {len(lines)} differences"
    listed = st.expander(label, key="draft-lines", on_change="rerun")
    if listed.open:
        listed.markdown("\n".join(f"- {plain(line)}" for line in lines[:MOST_LINES]))
        if len(lines) > MOST_LINES:
            listed.caption(
                f"and {len(lines) - MOST_LINES} more: save it as a scenario of its own to compare them."
            )


def _prove(workspace: Workspace, name: str, asked: PlanRequest) -> None:
    """One look at the search for the proof of the draft; the page is drawn anew when it ends."""
    goes_on = proof.is_looked_for(workspace, name, asked)
    found = proof.follow(workspace, name, asked)
    if found is not None:
        trial.searched(workspace, name, asked, found)
    if goes_on and not proof.is_looked_for(workspace, name, asked):
        st.rerun()
