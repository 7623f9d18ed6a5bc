"""The bar above the figures of the Plan page: what the draft changes and brings, and the ways out of it. Its place is
there without a draft too."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.plan import infeasible
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
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.comparison.compare import compare
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.objective import owes_nothing
from torchsplit_core.latency_slo.incumbent import is_settled
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.drafts import DraftStore, StoredDraft
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

MOST_LINES = 12
NO_DRAFT = "No draft. Change an input, and what it brings stands here; the stored plan stays."
ELSEWHERE = (
    "The scenario was changed elsewhere since this draft was begun. Keep stores the draft, and what stands now as a "
    "scenario of its own; Discard shows what stands now."
)
OLD_S = 86400.0
"""Seconds after which a draft of another tab is told in History alone."""
# One height with a draft and without: the first edit moves nothing.
STYLE = """<style>
.st-key-draft-bar { height: 3rem !important; flex-wrap: nowrap !important; border-inline-start: 4px solid transparent;
  padding-inline-start: .6rem; }
.st-key-draft-bar > [data-testid="stLayoutWrapper"]:first-child { flex: 1 1 0; min-width: 0; }
.st-key-draft-words { min-width: 0; overflow: hidden; }
p.draft-line, .st-key-draft-words [data-testid="stCaptionContainer"] p { margin: 0; font-size: .85rem;
  line-height: 1.35rem; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
p.draft-line.first { font-size: .95rem; }
p.draft-line.wrong { color: color-mix(in srgb, #d92d20 70%, currentColor); font-weight: 600; }
.st-key-draft-second { height: 1.35rem; flex-wrap: nowrap !important; overflow: hidden; }
.st-key-draft-second > * { flex: 0 1 auto !important; width: auto !important; min-width: 0; }
.st-key-draft-second > :nth-child(n+2) { flex: none !important; max-width: 60%; }
.st-key-draft-second button { min-height: 1.35rem !important; line-height: 1.35rem; font-size: .85rem; }
.st-key-draft-bar button { min-height: 2.2rem; padding-block: .1rem; white-space: nowrap; }
/* Below the library's own head, which a narrow window shows. */
@media (max-width: 640px) {
  .st-key-draft-bar { height: 7.9rem !important; flex-wrap: wrap !important; align-content: center; row-gap: .3rem; }
  .st-key-draft-bar > [data-testid="stLayoutWrapper"]:first-child { flex: 1 1 100%; }
  .st-key-draft-buttons { row-gap: .3rem !important; }
  .st-key-draft-bar button { min-height: 2rem; padding-inline: .5rem; } }
</style>"""
# Only while there is a draft: `:has` slows every page that it is on.
STUCK = """<style>[data-testid="stLayoutWrapper"]:has(> .st-key-draft-bar) { position: sticky; top: 0; z-index: 6;
  background: var(--ground); }
@media (max-width: 640px) { [data-testid="stLayoutWrapper"]:has(> .st-key-draft-bar) { top: 3.5rem; } }
.st-key-draft-bar { border-inline-start-color: light-dark(#0f766e, #2dd4bf); }</style>"""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where the bar is: its words, what is said of the search, and its buttons."""

    first: DeltaGenerator
    second: DeltaGenerator
    buttons: DeltaGenerator


def slot(*, stuck: bool) -> Slot:
    """The place of the bar, which is there with a draft and without; `stuck` to the head of the window."""
    st.html(STYLE + (STUCK if stuck else ""))
    with st.container(key="draft-bar", horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(key="draft-words", gap=None):
            first = st.container()
            second = st.container(key="draft-second", horizontal=True, gap="small")
        buttons = st.container(key="draft-buttons", horizontal=True, width="content", gap="small")
    return Slot(first, second, buttons)


def show(
    place: Slot,
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    planned: PlanOutcome | None,
    draft: Draft,
    tried: Trial,
) -> None:
    """The bar of a draft: what it changes and brings, and the ways out."""
    changed = words.changes_line(draft.kept.said, drafts.changes(draft, stored))
    place.first.html(words.line(f"Draft · {changed or 'an edit that cannot be taken over'}", "first"))
    fault = draft.fault or tried.fault
    with place.second:
        # Where no model is owed anything, the head of the page says so, with the way out.
        if fault and not owes_nothing(tried.request):
            st.html(words.line(fault, "wrong"))
        elif drafts.elsewhere(draft, stored):
            st.html(words.line(ELSEWHERE))
        elif gained := words.brings(planned, tried.outcome):
            st.html(words.line(gained))
    with place.buttons:
        _undo_button(workspace, name, stored)
        _ways_out(workspace, name, stored, draft, tried)


def show_none(place: Slot, workspace: Workspace, name: str, stored: PlanRequest) -> None:
    """The bar without a draft: that there is none, and whose others there are. What is done with the stored plan goes
    to its buttons."""
    place.first.html(words.line(NO_DRAFT))
    recent = [one for one in drafts.authors(workspace, name) if time.time() - one.edited < OLD_S]
    if recent:
        with place.second:
            st.html(words.line(words.author_line(recent, time.time())))
            if st.button("Open a copy", key="draft-copy", type="tertiary", help="It becomes your draft too."):
                other = DraftStore(workspace, name).load(recent[0].tab)
                if other is not None:
                    drafts.take_over(workspace, name, other)
                st.rerun()
    with place.buttons:
        _undo_button(workspace, name, stored)


def _undo_button(workspace: Workspace, name: str, stored: PlanRequest) -> None:
    st.button(
        "Undo edit", key="draft-undo", icon=":material/undo:", disabled=not drafts.can_undo(workspace, name),
        help="Take back the last edit, or that the draft was discarded.",
        on_click=drafts.undo, args=(workspace, name, stored),
    )  # fmt: skip


def search(place: DeltaGenerator, workspace: Workspace, name: str, draft: Draft) -> None:
    """How far the search for the draft is, to be shown while it may say more (`is_open`)."""
    with place:
        st.fragment(_prove, run_every=proof.REST_S)(workspace, name, draft.request)


def is_open(workspace: Workspace, draft: Draft, tried: Trial) -> bool:
    """Whether a search could say more: of a plan its proof, of an infeasible request the reasons and the ways out."""
    outcome = tried.outcome
    if outcome is None or draft.plan is not None:
        return False
    if not is_settled(draft.request, outcome):
        return True
    return outcome.status == "infeasible" and infeasible.ways_are_open(workspace, draft.request, outcome)


def _ways_out(workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, tried: Trial) -> None:
    faulty = bool(draft.fault) or owes_nothing(draft.request)
    label = "Keep and prove" if draft.plan is None else "Keep this plan"
    if st.button(label, type="primary", key="draft-keep", disabled=faulty):
        with frame.telling():
            _keep(workspace, name, stored, draft, tried)
    if st.button("Save as new scenario", key="draft-save-as", disabled=faulty):
        with frame.telling():
            _save_as(workspace, name, stored, draft, tried)
    if st.button("Discard", key="draft-discard", help="Undo edit brings it back."):
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


def keep_plan(workspace: Workspace, name: str, stored: PlanRequest, kept: StoredDraft) -> None:
    """Make a plan that somebody chose the scenario's; what stood is a version."""
    assert kept.plan is not None
    scenario.end_work(workspace, name)
    versions = VersionStore(workspace, name)
    versions.save()
    if kept.request != stored:
        workspace.put("plan_request", name, kept.request)
    workspace.put("plan", name, kept.plan)
    versions.save(kept.said)
    drafts.finish(workspace, name)


def _save_as(workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, tried: Trial) -> None:
    """The draft as a scenario of its own, which is proven; the one it was made of stands as before."""
    asked = draft.request if draft.plan is not None else _checked(workspace, draft.request)
    tail = words.changes_line(draft.kept.said, drafts.changes(draft, stored))[:60]
    new = named_results.free_name(workspace, named_results.SCENARIO_KINDS, f"{name[:50]} · {tail}".strip(" ·"))
    proof.drop(workspace, name)
    drafts.finish(workspace, name)
    frame.say(f"The draft is the scenario {new}; {name} stands as it was.")
    if draft.plan is None:
        plan_again(workspace, new, asked, shown=tried.outcome)
    workspace.put("plan_request", new, asked)
    workspace.put("plan", new, draft.plan)
    VersionStore(workspace, new).save(draft.kept.said)
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
        answered = planned is not None and named_results.plan_is_current(stored, planned)
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
    st.caption(escape_markdown(lines[0]))
    label = f"What changes against the stored plan: {len(lines)} differences"
    listed = st.expander(label, key="draft-lines", on_change="rerun")
    if listed.open:
        listed.markdown("\n".join(f"- {escape_markdown(line)}" for line in lines[:MOST_LINES]))
        if len(lines) > MOST_LINES:
            listed.caption(
                f"and {len(lines) - MOST_LINES} more: save it as a scenario of its own to compare them."
            )


def _prove(workspace: Workspace, name: str, asked: PlanRequest) -> None:
    """One look at the search for the proof of the draft; the page is drawn anew when it ends or says more."""
    goes_on = proof.is_looked_for(workspace, name, asked)
    outcome = proof.follow(workspace, name, asked)
    if outcome is not None:
        trial.searched(workspace, name, asked, outcome)
    elif goes_on and trial.is_infeasible(workspace, name):
        # The reasons are known before the ways out, which come one by one.
        known = PlanCache(workspace).lookup(asked)
        if known is not None and infeasible.is_news(workspace, name, asked, known):
            trial.searched(workspace, name, asked, known)
            st.rerun()
    if goes_on and not proof.is_looked_for(workspace, name, asked):
        st.rerun()
