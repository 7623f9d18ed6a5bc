"""Plans by common rules beside the plan: for the same request, with the same check, and the plan's gain."""

from __future__ import annotations

import html
import time

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.plans import slice_map
from app.plans.summary import SOLVED, weighted
from app.session import draft as drafts
from app.session import scenario
from app.shell import frame
from torchsplit_core.pictures.numbers import escape_markdown, exact, short
from torchsplit_core.planning.baselines.baseline_plans import Baseline, build_baselines
from torchsplit_core.planning.baselines.gain import gain
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace
from torchsplit_core.workspace.versions import VersionStore

SECONDS = 20.0
"""Seconds after which a baseline that is not ready says so."""
BAR = "light-dark(#0f766e, #2dd4bf)"


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """The tab: a table of all baselines, and the map of the chosen one."""
    if request is None or plan is None or plan.status not in SOLVED:
        st.write(
            "Here you will see what the plan gains over a whole GPU for each model, over equal static "
            "slices, over first fit and over a greedy best fit: plan first."
        )
        return
    if not named_results.plan_is_current(request, plan):
        st.info("The plan answers an earlier request: plan again, and compare then.")
        return
    baseline_plans = _cached_baselines(request_hash(request), plan.objective.bound, request, plan)
    markup = table(plan, baseline_plans, request)
    saving.exportable_table(markup, "Baselines", f"{name}.baselines", key="baselines")
    st.caption(
        "Each is a plan for the same request, made by the named rule and checked alike. "
        "None claims a proof: the bound is the plan's."
    )
    ruled = st.expander("How each is found", key="baseline-rules", on_change="rerun")
    if ruled.open:
        ruled.markdown(describe_rules(baseline_plans))
    solved = [baseline for baseline in baseline_plans if baseline.outcome is not None]
    if not solved:
        return
    titles, colours = [baseline.title for baseline in solved], scenario.colours(workspace)
    chosen = st.segmented_control("Map of", titles, default=titles[0], key="baseline-map")
    for baseline in solved:
        if baseline.title == chosen and baseline.outcome is not None:
            _open(workspace, name, request, baseline)
            slice_map.render(baseline.outcome, request, colours, key="baseline-slices", file=chosen)


def _open(workspace: Workspace, name: str, request: PlanRequest, baseline: Baseline) -> None:
    """The buttons that open a baseline as a draft or as a scenario."""
    with st.container(horizontal=True):
        origin = f"baseline: {baseline.title}"
        if st.button("Open as draft", key="baseline-draft"):
            drafts.change(workspace, name, request, request, plan=baseline.outcome, origin=origin)
            st.rerun()
        if st.button("Open as scenario", key="baseline-scenario"):
            with frame.fault_boundary():
                wanted = f"{name[:60]}, {baseline.title}"
                new = scenario.store_new(workspace, wanted, request, baseline.outcome)
                VersionStore(workspace, new).save(origin)
                frame.notify(f"This is {new}.")
                st.rerun()


@st.cache_resource(max_entries=16, show_spinner="Calculating the baselines …")
def _cached_baselines(
    request_sha256: str, bound: float | None, _request: PlanRequest, _plan: PlanOutcome
) -> tuple[Baseline, ...]:
    """The baselines of a request; its hash and the plan's bound are the key."""
    return build_baselines(_request, _plan, deadline=time.perf_counter() + SECONDS)


def table(plan: PlanOutcome, baseline_plans: tuple[Baseline, ...], request: PlanRequest) -> str:
    """The plan first, then every baseline with the plan's gain over it; the bars show the worst-served model."""
    outcomes = [plan, *(entry.outcome for entry in baseline_plans)]
    scale = max([1.0, *(least for entry in outcomes if (least := _worst_served(entry)) is not None)])
    gains = [gain(plan, entry, request.objective).description for entry in baseline_plans]
    rows = [_row("This plan", plan, "", scale)]
    rows += [
        _row(entry.title, entry.outcome, words, scale)
        for entry, words in zip(baseline_plans, gains, strict=True)
    ]
    of_what = "÷ weight · demand" if weighted(request) else "÷ demand"
    head = (
        f'<th>how</th><th title="the mark is what is asked">worst served {of_what}</th><th class="n">×</th>'
        '<th class="n">req/s, all models</th><th class="n">GPUs used</th><th>what the plan gains</th>'
    )
    return table_html(head, rows)


def describe_rules(baseline_plans: tuple[Baseline, ...]) -> str:
    """The rule of each baseline, as a list in Markdown."""
    lines = (
        (escape_markdown(baseline.title), escape_markdown(baseline.about)) for baseline in baseline_plans
    )
    return "\n".join(f"- **{title}.** {about}" for title, about in lines)


def _worst_served(outcome: PlanOutcome | None) -> float | None:
    return min((model.normalised for model in outcome.models), default=None) if outcome else None


def _row(title: str, outcome: PlanOutcome | None, words: str, scale: float) -> str:
    bar, least, total, used = "", _worst_served(outcome), "n/a", "n/a"
    if outcome is not None:
        total = exact(round(sum(model.throughput_rps for model in outcome.models), 1))
        used = f"{sum(gpu.used for gpu in outcome.gpus)} of {len(outcome.gpus)}"
    if least is not None:
        bar = (
            f'<span class="bar"><i style="width:{100 * least / scale:.1f}%;background:{BAR}"></i>'
            f'<b style="left:{100 / scale:.1f}%"></b></span>'
        )
    return (
        f'<tr><td class="name">{html.escape(title)}</td><td>{bar}</td><td class="n">{short(least)}</td>'
        f'<td class="n">{total}</td><td class="n">{used}</td>'
        f'<td style="min-width:13rem">{html.escape(words)}</td></tr>'
    )
