"""The Plan page: which model gets which slice, how good that is, and why it is no better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from app.components import saving
from app.plans import baselines, compare, confidence, history, infeasible, resilience, scenario_bar, slice_map
from app.plans.day import tab as day_tab
from app.plans.deploy import page as deploy_page
from app.plans.draft import bar, change_summary
from app.plans.draft import quick_plan as quick_plans
from app.plans.draft.quick_plan import TrialPlan, plan_draft
from app.plans.explanation import panel
from app.plans.inputs import form
from app.plans.load import tab as load_tab
from app.plans.manual import tab as manual_tab
from app.plans.measurement import tab as run_tab
from app.plans.model_table import models_table
from app.plans.screen import downloads, drawer, header_style, layout, tour
from app.plans.summary import SOLVED, Metric, basis_badge, metrics, status_badge
from app.plans.sweep import tab as sweep_tab
from app.plans.verdict import verdict_of
from app.plans.verdict_line import offer_minimum_demands, offer_response_limits, render_facts, render_verdict
from app.plans.what_if import proof
from app.session import draft as drafts
from app.session import scenario
from app.session.draft import Draft
from app.session.workspace import names, read
from app.shell import navigation, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PLAN, QUICK_START, RUN_HERE
from torchsplit_core.jobs.quick_start import MEASURED_MIX
from torchsplit_core.latency_slo.cost_and_tier_text import describe_cost, describe_power, describe_tiers
from torchsplit_core.latency_slo.verdict import PlanVerdict
from torchsplit_core.pictures.numbers import UNKNOWN, escape_markdown, short
from torchsplit_core.pictures.slice_map import slice_table
from torchsplit_core.planning.comparison.stopped_tenants import stopped_tenants
from torchsplit_core.planning.confidence.assessment import PlanConfidence
from torchsplit_core.planning.request.objective import has_no_minimum, models_without_minimum
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

TAB = "plan-tab"
"""The key of the page's tabs."""
TITLES = (
    "Plan",
    "Under load",
    "Run it",
    "Over the day",
    "Sweep",
    "Baselines",
    "Compare",
    "By hand",
    "History",
    "Deploy",
)
MOST_WARNINGS = 3
"""Warnings of a plan that the page shows."""
NO_METRICS = tuple(
    Metric(label, UNKNOWN, "no plan")
    for label in ("Worst-served model gets", "Throughput, all models", "GPUs used", "Unused on used GPUs")
)
"""The cards where there is no plan."""


def render(workspace: Workspace, first: str = TITLES[0]) -> None:
    """The whole page for the current scenario, at the `first` tab until another is chosen."""
    st.session_state.setdefault(TAB, first)
    scenario_bar.undo(workspace)
    name, known = scenario_bar.open_scenario(workspace)
    if name is None:
        _render_empty(workspace)
        return
    request, plan = read(workspace, "plan_request", name), read(workspace, "plan", name)
    working = bool(jobs.running(workspace, (PLAN, QUICK_START, RUN_HERE)))
    draft = drafts.load_draft(workspace, name, request)
    trial_plan = plan_draft(workspace, name, draft, plan)
    if draft is None:
        proof.stop(workspace, name)
    top = st.container()
    shown = trial_plan.outcome if trial_plan else plan
    shown_request = trial_plan.request if trial_plan else request
    plan_confidence = confidence.confidence_of(shown_request, shown) if shown else None
    opened = drawer.is_open(shown, drawer.selected_place(workspace, name))
    layout.style(working=working, chosen=opened)
    header_style.style()
    slot = bar.bar_slot(stuck=draft is not None) if request is not None else None
    numbers = st.container(key="numbers")
    places = layout.places()
    # The map first: while a slider moves, it should not wait for the rest of the page, since the browser draws every
    # part as it arrives.
    with places.results:
        searching, is_open = working, False
        if draft is not None and trial_plan is not None:
            is_open = bar.is_open(workspace, draft, trial_plan)
            searching = is_open and proof.is_running(workspace, name, draft.request)
        _tabs(workspace, name, request, plan, searching, draft, trial_plan, plan_confidence)
    # The verdict is simulated, which takes as long as all the rest: the map has been sent by now.
    verdict = verdict_of(shown_request, shown) if shown else None
    if slot is not None and request is not None:
        if draft is not None and trial_plan is not None:
            bar.render(slot, workspace, name, request, plan, draft, trial_plan)
            if is_open:
                bar.search(slot.second, workspace, name, draft)
        else:
            bar.render_without_draft(slot, workspace, name, request)
            with slot.buttons:
                bar.plan_button(workspace, name, request, plan)
                if plan is not None and plan.status in SOLVED:
                    _deploy_button(plan)
    with top:
        _headline(workspace, name, known, request, plan, working, draft, trial_plan)
        _render_verdict(workspace, name, request, shown_request, shown, verdict, searching)
    with numbers:
        layout.tint(verdict)
        _metrics(shown_request, shown, plan if trial_plan else None)
        _what_stops(shown_request, shown)
    with places.chosen:
        drawer.render(workspace, name, shown_request, shown)
    with places.inputs:
        if request is not None:
            form.render(workspace, name, request, draft, shown, plan)
        else:
            st.info(
                "This plan came without its request: drop the request file on the Workspace page to change it."
            )
    if trial_plan is not None and draft is not None and request is not None:
        downloads.render_draft(name, request, draft, trial_plan)
    else:
        downloads.render(workspace, name, request, plan)
    if plan is not None and plan.status in SOLVED and not working and name.startswith(MEASURED_MIX):
        tour.render()
    drafts.save(workspace, name)
    quick_plans.remember_plan(workspace, name)


def _render_verdict(
    workspace: Workspace,
    name: str,
    request: PlanRequest | None,
    shown_request: PlanRequest | None,
    shown: PlanOutcome | None,
    verdict: PlanVerdict | None,
    searching: bool,
) -> None:
    """The verdict and its facts, in places of fixed height."""
    with st.container(key="results"):
        if verdict is not None:
            render_verdict(verdict)
        elif shown is None:
            _not_planned(searching, shown_request)
        else:
            st.html(header_style.NOTHING)
    with st.container(key="facts", horizontal=True, vertical_alignment="center"):
        if request is not None and shown_request is not None and models_without_minimum(shown_request):
            offer_minimum_demands(workspace, name, request, shown_request)
        elif not (request and shown_request and shown and verdict and verdict.facts):
            st.html(header_style.NOTHING)
        else:
            render_facts(
                verdict,
                (
                    describe_tiers(shown_request, shown),
                    describe_cost(shown_request, shown),
                    describe_power(shown_request, shown, rule=False),
                ),
            )
            if verdict.may_plan_for_response:
                offer_response_limits(workspace, name, request, shown_request)


def _tabs(
    workspace: Workspace,
    name: str,
    request: PlanRequest | None,
    plan: PlanOutcome | None,
    searching: bool,
    draft: Draft | None,
    trial_plan: TrialPlan | None,
    plan_confidence: PlanConfidence | None,
) -> None:
    """The plan, and the other tabs about the scenario."""
    planned, *others, past, files = st.tabs(TITLES, key=TAB, on_change="rerun")
    if planned.open:
        with planned:
            if trial_plan is not None and trial_plan.outcome is not None:
                shown = (trial_plan.request, trial_plan.outcome)
                with st.container(key="map"):
                    _outcome(workspace, name, *shown, plan_confidence, searching, stored=False)
            elif plan is None or trial_plan is not None:
                st.caption("Here you will see each GPU's slices, what each model gets, and what binds it.")
            else:
                with st.container(key="map"):
                    _outcome(workspace, name, request, plan, plan_confidence, searching)
            if trial_plan is not None:
                bar.differences(plan, trial_plan)
    about_stored: tuple[Callable[[], None], ...] = (
        lambda: load_tab.render(workspace, name, request, plan),
        lambda: run_tab.render(workspace, name, request, plan),
        lambda: _over_day(workspace, name, request),
        lambda: _sweep(workspace, name, request),
        lambda: baselines.render(workspace, name, request, plan),
        lambda: compare.render(workspace, name, plan),
        lambda: manual_tab.render(workspace, name, request, plan),
        lambda: deploy_page.render(workspace, name, plan, request),
    )
    for tab, render_tab in zip((*others, files), about_stored, strict=True):
        if tab.open:
            with tab:
                _stored_note(trial_plan, request, plan)
                render_tab()
    if past.open:
        with past:
            if request is None:
                st.info("This plan came without its request: it has no versions.")
            else:
                history.render(workspace, name, request, plan, draft)


def _over_day(workspace: Workspace, name: str, request: PlanRequest | None) -> None:
    if request is None:
        st.info("This plan came without its request: there is no demand to vary over the day.")
    else:
        day_tab.render(workspace, name, request)


def _sweep(workspace: Workspace, name: str, request: PlanRequest | None) -> None:
    if request is None:
        st.info("This plan came without its request: there is nothing to vary.")
    else:
        sweep_tab.render(workspace, name, request)


def _stored_note(trial_plan: TrialPlan | None, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """With a draft, say that a tab is about the stored plan: the verdict above is on the draft."""
    if trial_plan is not None:
        sentence = verdict_of(request, plan).sentence if plan is not None else ""
        st.caption(
            escape_markdown(f"This tab is about the scenario as stored, without the draft. {sentence}")
        )


def _render_empty(workspace: Workspace) -> None:
    # First, because this job stores the profiles one by one.
    if jobs.running(workspace, (QUICK_START, RUN_HERE)):
        st.info("The models are traced and profiled first; the plan appears here by itself.")
        return
    if names(workspace, "profile"):
        st.write("Here you will see which slice of which GPU every model gets. Say what to serve on what:")
        form.render_first_request(workspace)
        return
    st.write("Here you will see which slice of which GPU every model gets, and how good that is.")
    navigation.link("Models", "Choose models first")


def _headline(
    workspace: Workspace,
    name: str,
    known: Sequence[str],
    request: PlanRequest | None,
    plan: PlanOutcome | None,
    working: bool,
    draft: Draft | None,
    trial_plan: TrialPlan | None,
) -> None:
    with st.container(key="headline", horizontal=True, vertical_alignment="center", gap="small"):
        layout.fold_buttons()
        scenario_bar.render(workspace, name, known)
        if draft is not None:
            widgets.badge("draft, not kept", "blue")
            if trial_plan is not None and trial_plan.outcome is not None:
                badge = status_badge(trial_plan.outcome)
                st.badge(badge.text, color=badge.colour, help=badge.help)
        elif plan is not None:
            for badge in filter(None, (status_badge(plan), basis_badge(plan, request))):
                st.badge(badge.text, color=badge.colour, help=badge.help)
            if request is not None and not working and not named_results.plan_is_current(request, plan):
                widgets.badge("answers an earlier request: plan again", "yellow")


def _deploy_button(plan: PlanOutcome) -> None:
    served = any(gpu.slices for gpu in plan.gpus)
    why = None if served else "The plan has no slice: no model is served."
    st.button(
        "Deploy this plan", key="deploy-plan", type="primary", disabled=not served, help=why,
        on_click=lambda: st.session_state.update({TAB: TITLES[-1]}),
    )  # fmt: skip


def _metrics(request: PlanRequest | None, plan: PlanOutcome | None, before: PlanOutcome | None) -> None:
    """The cards, which are there without a plan too; the first three show the difference from the plan `before`."""
    solved = plan is not None and plan.status in SOLVED
    items = metrics(plan, request) if plan is not None and solved else NO_METRICS
    gained = change_summary.deltas(before, plan) if plan is not None and solved else (None,) * 4
    for number, (column, item) in enumerate(zip(st.columns(4), items, strict=True)):
        with column.container(border=True, height="stretch", gap="xxsmall", key=f"card-{number}"):
            # More GPUs are no gain in themselves.
            colour = "off" if number == 2 else "normal"
            st.metric(item.label, item.value, gained[number], delta_color=colour, help=item.help or None)  # type: ignore[arg-type]
            st.caption(escape_markdown(item.note))


def _what_stops(request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """Of a plan from what runs now, how much changes and what stops."""
    if request is not None and plan is not None and plan.status in SOLVED:
        stopped = stopped_tenants(request, plan.gpus)
        if stopped is not None:
            st.caption(escape_markdown(f"From what runs now: {stopped.words}"))


def _not_planned(working: bool, request: PlanRequest | None) -> None:
    if working:
        st.info("The first plan appears here as soon as it is found and checked.")
    elif request is not None and has_no_minimum(request):
        # The next line says why, and offers the demands.
        st.info("Nothing to plan yet.")
    else:
        st.info("Not planned yet: press Plan.")


def _outcome(
    workspace: Workspace,
    name: str,
    request: PlanRequest | None,
    plan: PlanOutcome,
    plan_confidence: PlanConfidence | None,
    searching: bool,
    *,
    stored: bool = True,
) -> None:
    if plan.status == "infeasible":
        infeasible.render(workspace, name, request, plan, searching=searching)
        return
    if plan.status == "timeout" and searching:
        st.info("No plan was found in the first moment: still searching.")
        return
    if plan.status == "timeout":
        limit = f" in {short(request.solver.time_limit_s, 's')}" if request else ""
        st.warning(
            f"No plan was found{limit}, and none was ruled out. Give the search more time, or ask for less."
        )
        _warnings(plan.warnings)
        return
    colours = scenario.colours(workspace)
    # File names say which plan they are of.
    file = name if stored else f"{name}.draft"
    with st.container(border=True):
        slice_map.render(
            plan, request, colours, title="Slices", key="slices", file=file,
            chosen=drawer.selected_place(workspace, name),
            on_place=partial(drawer.choose, workspace, name),
            on_model=partial(drawer.choose_model, workspace, name),
        )  # fmt: skip
        # A closed table is not drawn, else every step of a slider would draw it.
        table = st.expander("The same as a table", key="slices-table", on_change="rerun")
        if table.open:
            with table:
                rows = slice_table(plan, request)
                saving.table(rows, f"{file}.slices", key="slices", alt="Every slice and who has it")
    # Below the map, so that they do not move it.
    _warnings(plan.warnings)
    with st.container(border=True):
        st.header("What each model gets", anchor=False)
        table_of_models = models_table(plan, request, colours, pick=True)
        saving.exportable_table(table_of_models, "What each model gets", f"{file}.models", key="models")
        st.caption(
            "The mark on a bar is the demand. Click a model here, or its slice on the map, to highlight it in both and "
            "see every way it could run."
        )
    confidence.render(plan_confidence)
    resilience.render(request, plan, file)
    if stored:
        panel.render(workspace, name, request, plan)


def _warnings(warnings: Sequence[str]) -> None:
    """The warnings in one box, which takes little room."""
    if not warnings:
        return
    lines = [escape_markdown(text) for text in warnings[:MOST_WARNINGS]]
    if len(warnings) > MOST_WARNINGS:
        lines.append(f"{len(warnings) - MOST_WARNINGS} more warnings are in the plan's file.")
    st.warning("\n".join(f"- {line}" for line in lines) if len(lines) > 1 else lines[0])
