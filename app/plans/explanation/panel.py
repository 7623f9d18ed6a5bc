"""The section of the Plan page that explains the plan: its stored explanation, or a button that starts one."""

from __future__ import annotations

import html

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.plans.explanation import descriptions
from app.session import draft as drafts
from app.session import scenario
from app.shell import frame
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import EXPLAIN, PLAN, QUICK_START
from torchsplit_core.pictures.numbers import escape_markdown, exact, short
from torchsplit_core.planning.explanation.applied_change import apply_effect
from torchsplit_core.planning.request.objective import tier_level_count
from torchsplit_core.values import ChangeEffect, PlanExplanation, PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

LAYOUTS = "Why not another layout"
MOST_CHIPS = 5
"""Changes offered as buttons."""
MOST_OPEN = 3
"""More changes without a settled answer fold into one line."""


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome) -> None:
    """What binds each model, what changes would bring, why not another layout."""
    with st.container(border=True, key="explanation"):
        st.header("Why this plan", anchor=False)
        if plan.explanation is not None:
            if request is not None:
                _chips(workspace, name, request, plan.explanation)
            _render_sections(plan.explanation, plan)
        _button(workspace, name, request, plan)


def _chips(workspace: Workspace, name: str, request: PlanRequest, explanation: PlanExplanation) -> None:
    """The changes that are worth a try, each a button that applies it to the draft."""
    with st.container(horizontal=True, key="why-chips"):
        for number, change in enumerate(promising_changes(explanation)):
            edited = apply_effect(request, change)
            if edited is None:
                continue
            label = escape_markdown(descriptions.chip_label(change))
            if st.button(label, key=f"why-{number}", help="Try it in the draft."):
                drafts.change(workspace, name, request, edited)
                st.rerun()


def promising_changes(explanation: PlanExplanation) -> list[ChangeEffect]:
    """The changes that are known to have an effect, GPUs first, then by the value that they reach."""
    known = [change for change in explanation.changes if change.effect in ("better", "worse")]
    known.sort(key=lambda change: (change.what != "gpu", -(change.value_after or 0.0)))
    return known[:MOST_CHIPS]


def _button(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome) -> None:
    if request is None or not named_results.plan_is_current(request, plan):
        st.caption("Only the plan of the request shown here can be explained: plan again first.")
        return
    if jobs.running(workspace, (PLAN, QUICK_START, EXPLAIN)):
        st.caption("Work is under way: its results appear here by themselves.")
        return
    if _starts_by_itself(workspace, name, plan.explanation):
        with frame.fault_boundary():
            scenario.start_explain(workspace, name)
            st.rerun()
    if plan.explanation is None:
        st.caption(
            "Here you will see what binds each model, what one more GPU or an easier demand would bring, "
            "and why no GPU has another layout. It takes up to 20 seconds; what is open then is settled "
            "while this page is open."
        )
    elif plan.explanation.complete:
        return
    label = "Explain this plan" if plan.explanation is None else "Explain again"
    if st.button(label, key="explain"):
        with frame.fault_boundary():
            scenario.start_explain(workspace, name)
            st.rerun()


def _starts_by_itself(workspace: Workspace, name: str, explanation: PlanExplanation | None) -> bool:
    """Whether a new plan is to be explained, or the job before ended with questions left: not if it was cancelled."""
    if explanation is None:
        return scenario.take_explanation_request(workspace)
    before = None if explanation.complete else jobs.newest(workspace, EXPLAIN, name)
    return before is not None and before.state == "done" and bool((before.result or {}).get("more"))


def sections(explanation: PlanExplanation, plan: PlanOutcome) -> list[tuple[str, str]]:
    """Title and HTML of each part of an explanation."""
    kind, of_tiers = plan.objective.kind, tier_level_count(plan.objective)
    changes = "<p>The fleet is as large as a plan takes, and there is no demand to ease.</p>"
    layouts = "<p>Every layout there is to choose stands on some GPU.</p>"
    if explanation.changes:
        changes = _changes(explanation, kind, of_tiers)
    if explanation.layouts:
        layouts = _layouts(explanation, kind, of_tiers)
    first = [("What binds each model", _models(explanation)), ("What one change would bring", changes)]
    if explanation.engines:
        first.append(("Which engines", _engines(explanation, kind, of_tiers)))
    return [*first, (LAYOUTS, layouts), ("The price of each step", _steps(explanation))]


def _render_sections(explanation: PlanExplanation, plan: PlanOutcome) -> None:
    for title, text in sections(explanation, plan):
        st.subheader(title, anchor=False)
        if title == LAYOUTS and explanation.layouts:
            tried = sum(reason.reason == "tried" for reason in explanation.layouts)
            with st.expander(f"{len(explanation.layouts)} layouts that no GPU has, {tried} of them tried"):
                saving.exportable_table(text, title, f"why.{title}", key=f"explanation {title}")
        elif "<table" in text:
            saving.exportable_table(text, title, f"why.{title}", key=f"explanation {title}")
        else:
            st.html(text)
    if not explanation.complete:
        st.caption("Not proven and not examined mean that time ran out, not that a change has no effect.")


def _models(explanation: PlanExplanation) -> str:
    head = '<th>model</th><th class="n">×</th><th>binds, proven</th><th>does not bind, proven</th><th>not proven</th>'
    describe = (
        descriptions.describe_binding,
        descriptions.describe_nonbinding,
        descriptions.describe_unproven,
    )
    rows = []
    for item in sorted(explanation.models, key=lambda item: item.level):
        cells = "".join(f"<td>{html.escape(text(item))}</td>" for text in describe)
        figure = f'<td class="n">{exact(round(item.normalised, 3))}</td>'
        rows.append(f'<tr><td class="name">{html.escape(item.model)}</td>{figure}{cells}</tr>')
    return table_html(head, rows)


def _changes(explanation: PlanExplanation, kind: str, of_tiers: int) -> str:
    """The fleet first, then dropped demands that bind, then eased demands with an effect or without an answer."""
    dropped = {
        descriptions.describe_dropped_demand(limit.change) + (limit.change.model or ""): limit.change
        for item in explanation.models
        for limit in item.limits
        if limit.change is not None and limit.change.new is None and limit.binds is not False
    }
    relaxed = [change for change in explanation.changes if change.what != "gpu"]
    eased = [change for change in relaxed if change.effect != "same" or change.what == "link"]
    gpus = [change for change in explanation.changes if change.what == "gpu"]
    shown = [(descriptions.describe_change(change), change) for change in gpus]
    for change in dropped.values():
        owner = f"{change.model}: " if change.model else ""
        shown.append((f"{owner}without {descriptions.describe_dropped_demand(change)}", change))
    shown += [(descriptions.describe_change(change), change) for change in eased]
    # Settled answers come first: an open one says least. Then GPUs, and what changes most.
    shown.sort(key=lambda item: (item[1].effect in ("open", "not_examined"), *_by_effect(item[1])))
    settled = [item for item in shown if item[1].effect not in ("open", "not_examined")]
    left = shown[len(settled) :]
    if len(left) <= MOST_OPEN:
        settled, left = shown, []

    def escaped(item: tuple[str, ChangeEffect]) -> tuple[str, str]:
        text, change = item
        return html.escape(text), html.escape(descriptions.describe_effect(change, kind, of_tiers))

    rows = [f"<tr><td>{text}</td><td>{effect}</td></tr>" for text, effect in map(escaped, settled)]
    if left:
        each = "".join(f"<li>{text}: {effect}</li>" for text, effect in map(escaped, left))
        rows.append(
            f"<tr><td><details><summary>{len(left)} changes of one demand</summary><ul>{each}</ul></details></td>"
            "<td>not settled in the time given</td></tr>"
        )
    idle = sum(change.effect == "same" and change.what != "link" for change in relaxed)
    if idle:
        rows.append(
            f"<tr><td>{idle} demands eased by 10 %, one at a time</td><td>no change, proven</td></tr>"
        )
    return table_html("<th>this change alone</th><th>what the best plan reaches</th>", rows)


def _by_effect(change: ChangeEffect) -> tuple[bool, int, float]:
    """Sort key: GPUs, the worst served, the largest possible effect first."""
    figures = [figure for figure in (change.value_after, change.bound_after) if figure is not None]
    effects = [abs(figure - (change.value_before or 0.0)) for figure in figures]
    return change.what != "gpu", change.level or 0, -max(effects, default=0.0)


def _layouts(explanation: PlanExplanation, kind: str, of_tiers: int) -> str:
    order = ("tried", "not_examined", "dominated", "no_use")
    rows = [
        f'<tr><td class="name">{html.escape(reason.gpu_type)}</td>'
        f"<td>{html.escape(descriptions.describe_layout(reason.layout))}</td>"
        f"<td>{html.escape(descriptions.describe_reason(reason, kind, of_tiers))}</td></tr>"
        for reason in sorted(
            explanation.layouts,
            key=lambda reason: (
                order.index(reason.reason),
                *(_by_effect(reason.trial) if reason.trial else ()),
            ),
        )
    ]
    return table_html("<th>GPU</th><th>layout</th><th>why not</th>", rows)


def _engines(explanation: PlanExplanation, kind: str, of_tiers: int) -> str:
    """Every place that an LLM's engines may have, and the plan with all of them there."""
    head = (
        '<th>model</th><th>engine on</th><th class="n">in the plan</th><th class="n">req/s of one</th>'
        "<th>held by</th><th>with all of its engines there</th>"
    )
    rows = []
    for reason in explanation.engines:
        rate = short(reason.rate_rps)
        if reason.low_rps is not None and reason.high_rps is not None:
            rate += f" ({short(reason.low_rps)}–{short(reason.high_rps)})"
        place, why = (
            html.escape(text)
            for text in (
                reason.place,
                descriptions.describe_engine_reason(reason, kind, of_tiers),
            )
        )
        rows.append(
            f'<tr><td class="name">{html.escape(reason.model)}</td><td>{place}</td>'
            f'<td class="n">{reason.engines or ""}</td><td class="n">{rate}</td>'
            f"<td>{html.escape(reason.binds)}</td><td>{why}</td></tr>"
        )
    return table_html(head, rows)


def _steps(explanation: PlanExplanation) -> str:
    head = '<th>with</th><th class="n">reached</th><th class="n">bound</th><th class="n">from the first bound</th>'
    rows = []
    for step in explanation.steps:
        name, *cells = descriptions.describe_step(step)
        numbers = "".join(f'<td class="n">{html.escape(text)}</td>' for text in cells)
        rows.append(f"<tr><td>{html.escape(name)}</td>{numbers}</tr>")
    return table_html(head, rows)
