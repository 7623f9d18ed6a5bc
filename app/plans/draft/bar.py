"""The bar above the figures of the Plan page: what the draft changes and gains, and its buttons. It keeps its place
without a draft."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.plans import infeasible
from app.plans.draft import change_summary, quick_plan
from app.plans.draft.quick_plan import TrialPlan
from app.plans.summary import SOLVED
from app.plans.what_if import proof
from app.session import cuts, scenario
from app.session import draft as drafts
from app.session.draft import Draft
from app.shell import frame
from app.shell.replan import plan_again
from torchsplit_core.latency_slo.incumbent import is_settled
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.planning.comparison.plan_comparison import compare
from torchsplit_core.planning.request import edit
from torchsplit_core.planning.request.objective import has_no_minimum
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.drafts import DraftStore, StoredDraft
from torchsplit_core.workspace.plan_cache.cache import PlanCache
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

MOST_LINES = 12
NO_DRAFT = "No draft. Change an input to see here what it brings."
ELSEWHERE = (
    "The scenario was changed elsewhere since this draft was begun. Keep stores the draft, and what stands now as a "
    "scenario of its own; Discard shows what stands now."
)
OLD_S = 86400.0
"""Seconds after which only History mentions a draft of another tab."""
# One height with and without a draft, so that the first edit moves nothing.
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
# Only with a draft: `:has` slows every page that has it.
STUCK = """<style>[data-testid="stLayoutWrapper"]:has(> .st-key-draft-bar) { position: sticky; top: 0; z-index: 6;
  background: var(--ground); }
@media (max-width: 640px) { [data-testid="stLayoutWrapper"]:has(> .st-key-draft-bar) { top: 3.5rem; } }
.st-key-draft-bar { border-inline-start-color: light-dark(#0f766e, #2dd4bf); }</style>"""


@dataclass(frozen=True, slots=True)
class BarSlot:
    """The containers of the bar: its words, the state of the search, its buttons."""

    first: DeltaGenerator
    second: DeltaGenerator
    buttons: DeltaGenerator


def bar_slot(*, stuck: bool) -> BarSlot:
    """The place of the bar, with or without a draft; `stuck` to the top of the window."""
    st.html(STYLE + (STUCK if stuck else ""))
    with st.container(key="draft-bar", horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(key="draft-words", gap=None):
            first = st.container()
            second = st.container(key="draft-second", horizontal=True, gap="small")
        buttons = st.container(key="draft-buttons", horizontal=True, width="content", gap="small")
    return BarSlot(first, second, buttons)


def render(
    place: BarSlot,
    workspace: Workspace,
    name: str,
    stored: PlanRequest,
    planned: PlanOutcome | None,
    draft: Draft,
    trial_plan: TrialPlan,
) -> None:
    """The bar of a draft: what it changes and gains, and its buttons."""
    changed = change_summary.describe_draft(draft.content.said, drafts.changes(draft, stored))
    line = f"Draft · {changed or 'an edit that cannot be taken over'}"
    place.first.html(change_summary.line_html(line, "first"))
    fault = draft.fault or trial_plan.fault
    with place.second:
        # Without any minimum the head of the page says so, and how to change that.
        if fault and not has_no_minimum(trial_plan.request):
            st.html(change_summary.line_html(fault, "wrong"))
        elif drafts.changed_elsewhere(draft, stored):
            st.html(change_summary.line_html(ELSEWHERE))
        elif gained := change_summary.describe_gains(planned, trial_plan.outcome):
            st.html(change_summary.line_html(gained))
    with place.buttons:
        _undo_button(workspace, name, stored)
        _ways_out(workspace, name, stored, draft, trial_plan)


def render_without_draft(place: BarSlot, workspace: Workspace, name: str, stored: PlanRequest) -> None:
    """The bar without a draft: it says so, and who else has one. The caller adds the buttons of the stored plan."""
    place.first.html(change_summary.line_html(NO_DRAFT))
    others = drafts.other_authors(workspace, name)
    recent = [author for author in others if time.time() - author.edited < OLD_S]
    if recent:
        with place.second:
            st.html(change_summary.line_html(change_summary.describe_authors(recent, time.time())))
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
    """The state of the search for the draft, shown while `is_open`."""
    with place:
        st.fragment(_poll_proof, run_every=proof.REST_S)(workspace, name, draft.request)


def is_open(workspace: Workspace, draft: Draft, trial_plan: TrialPlan) -> bool:
    """Whether a search could add something: the proof of a plan, or reasons and repairs of an infeasible request."""
    outcome = trial_plan.outcome
    if outcome is None or draft.plan is not None:
        return False
    if not is_settled(draft.request, outcome):
        return True
    infeasible_request = outcome.status == "infeasible"
    return infeasible_request and infeasible.may_find_relaxation(workspace, draft.request, outcome)


def _ways_out(
    workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, trial_plan: TrialPlan
) -> None:
    faulty = bool(draft.fault) or has_no_minimum(draft.request)
    label = "Keep and prove" if draft.plan is None else "Keep this plan"
    if st.button(label, type="primary", key="draft-keep", disabled=faulty):
        with frame.fault_boundary():
            _store_draft(workspace, name, stored, draft, trial_plan)
    if st.button("Save as new scenario", key="draft-save-as", disabled=faulty):
        with frame.fault_boundary():
            _save_as(workspace, name, stored, draft, trial_plan)
    if st.button("Discard", key="draft-discard", help="Undo edit brings it back."):
        proof.stop(workspace, name)
        drafts.discard(workspace, name)
        st.rerun()


def _store_draft(
    workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, trial_plan: TrialPlan
) -> None:
    """Store what is on screen; the search continues only with what its plan leaves open."""
    proof.stop(workspace, name)
    if draft.plan is not None:
        store_plan(workspace, name, stored, draft.content)
        st.rerun()
    request = _validated(workspace, draft.request)
    if request != draft.request:
        # The draft must equal what is stored next, which ends it.
        drafts.change(workspace, name, stored, request)
    base = request if drafts.changed_elsewhere(draft, stored) else stored
    plan_again(workspace, name, request, base=base, shown=trial_plan.outcome)


def store_plan(workspace: Workspace, name: str, stored: PlanRequest, chosen: StoredDraft) -> None:
    """Make a plan that the user chose the scenario's plan; the previous state becomes a version."""
    assert chosen.plan is not None
    scenario.end_work(workspace, name)
    versions = VersionStore(workspace, name)
    versions.save()
    if chosen.request != stored:
        workspace.put("plan_request", name, chosen.request)
    workspace.put("plan", name, chosen.plan)
    versions.save(chosen.said)
    drafts.finish(workspace, name)


def _save_as(
    workspace: Workspace, name: str, stored: PlanRequest, draft: Draft, trial_plan: TrialPlan
) -> None:
    """Store the draft as a new scenario and prove it; the original scenario stays as it is."""
    request = draft.request if draft.plan is not None else _validated(workspace, draft.request)
    tail = change_summary.describe_draft(draft.content.said, drafts.changes(draft, stored))[:60]
    wanted = f"{name[:50]} · {tail}".strip(" ·")
    new = named_results.free_name(workspace, named_results.SCENARIO_KINDS, wanted)
    proof.stop(workspace, name)
    drafts.finish(workspace, name)
    frame.notify(f"The draft is the scenario {new}; {name} stands as it was.")
    if draft.plan is None:
        plan_again(workspace, new, request, shown=trial_plan.outcome)
    scenario.store_new(workspace, new, request, draft.plan)
    VersionStore(workspace, new).save(draft.content.said)
    st.rerun()


def _validated(workspace: Workspace, request: PlanRequest) -> PlanRequest:
    """The request as it would be stored. Raises InputFault, with nothing stored, where it is wrong."""
    profiles = edit.profiles_of(request, drafts.stored_profiles(workspace))
    return edit.validated_request(edit.with_points(request, profiles, cuts.offers(workspace)))


def plan_button(workspace: Workspace, name: str, stored: PlanRequest, planned: PlanOutcome | None) -> None:
    """The button in the bar without a draft that plans the stored request, unless its answer is proven already."""
    kind: Literal["primary", "secondary"] = "primary" if planned is None else "secondary"
    if not st.button("Plan", key="plan", type=kind, disabled=has_no_minimum(stored)):
        return
    with frame.fault_boundary():
        answered = planned is not None and named_results.plan_is_current(stored, planned)
        settled = answered and planned is not None and planned.status in ("optimal", "infeasible")
        if settled and _validated(workspace, stored) == stored:
            st.toast("Nothing has changed: this is the proven answer to the request as it stands.")
            return
        if answered:
            frame.notify("Nothing has changed in the request: the search for the proof is made again.")
        plan_again(workspace, name, stored, base=stored)


def differences(planned: PlanOutcome | None, trial_plan: TrialPlan) -> None:
    """The changes against the stored plan, in sentences."""
    outcome = trial_plan.outcome
    if planned is None or outcome is None or not {planned.status, outcome.status} <= set(SOLVED):
        return
    lines = compare(planned, outcome).lines
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


def _poll_proof(workspace: Workspace, name: str, request: PlanRequest) -> None:
    """Poll the search for the proof of the draft; the page is drawn again when it ends or has more to say."""
    was_running = proof.is_running(workspace, name, request)
    outcome = proof.poll(workspace, name, request)
    if outcome is not None:
        quick_plan.take_search_result(workspace, name, request, outcome)
    elif was_running and quick_plan.is_infeasible(workspace, name):
        # The reasons are known before the repairs, which come one by one.
        known = PlanCache(workspace).lookup(request)
        if known is not None and infeasible.has_new_relaxation(workspace, name, request, known):
            quick_plan.take_search_result(workspace, name, request, known)
            st.rerun()
    if was_running and not proof.is_running(workspace, name, request):
        st.rerun()
