"""Scenarios compared: all in one table, some by model, and the change from one to another on maps and in words."""

from __future__ import annotations

import html
from collections.abc import Sequence

import streamlit as st

from app.components import saving
from app.format.html import table_html
from app.plans import scenario_table, slice_map
from app.plans.scenario_table import StoredScenario
from app.plans.summary import describe_metrics, status_badge
from app.plans.verdict import verdict_of
from app.session import scenario
from app.session.workspace import read
from torchsplit_core.latency_slo.verdict import PlanVerdict
from torchsplit_core.pictures.numbers import UNKNOWN, escape_markdown, exact, short
from torchsplit_core.pictures.slice_values import Marks
from torchsplit_core.planning.comparison.changes import ModelChange, SliceChange
from torchsplit_core.planning.comparison.description import format_relative
from torchsplit_core.planning.comparison.plan_comparison import PlanComparison, compare
from torchsplit_core.planning.comparison.plan_totals import totals_of
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

MOST_COLUMNS = 8
"""Scenarios in the table by model."""
MOST_LINES = 12
"""Sentences that are shown; the rest unfold."""


FROM, TO, CHOSEN = "compare-from", "compare-to", "compare-pair-of"
"""The session's keys of the two scenarios that are compared, and of the choice in the table that last set them."""
READING = "compare-reading"
"""The session's key of whether plans are still to be read for the table."""


def render(workspace: Workspace, name: str, plan: PlanOutcome | None) -> None:
    """The tab: all scenarios, and the change from one to another, with the current one to begin with."""
    scenarios = scenario_table.list_scenarios(workspace, name)
    if len(scenarios) < 2:
        st.write(
            "Here two scenarios stand side by side: which slices change, which models gain or lose, what must be "
            "drained. Duplicate this scenario (Scenario …), change the copy and plan it."
        )
        return
    left = scenario_table.load_summaries(workspace, scenarios, scenario_table.MOMENT_S)
    goes_on = bool(left) or st.session_state.get(READING, False)
    # A fragment, so that the maps are not drawn again while plans are read.
    again = scenario_table.AGAIN_S if goes_on else None
    st.fragment(_all, run_every=again)(workspace, name, scenarios, goes_on)
    solved = [entry.name for entry in scenarios if scenario_table.has_plan(entry)]
    if len(solved) > 1:
        selected = [entry for entry in st.session_state[scenario_table.CHOSEN] if entry in solved]
        st.fragment(_chosen)(workspace, name, solved, selected)
    elif not left:
        st.caption("Two scenarios with a plan can stand side by side here: plan another one.")


def _all(workspace: Workspace, name: str, scenarios: Sequence[StoredScenario], goes_on: bool) -> None:
    """The table of all scenarios, whose choice the rest of the tab follows."""
    before = tuple(st.session_state.setdefault(scenario_table.CHOSEN, []))
    shown = scenario_table.render_filter(workspace, name, scenarios)
    left = scenario_table.load_summaries(workspace, scenarios, scenario_table.MOMENT_S, shown)
    st.session_state[READING] = bool(left)
    scenario_table.render(workspace, name, shown, left)
    # Only a run of the page sets the interval of this fragment.
    if bool(left) != goes_on or tuple(st.session_state[scenario_table.CHOSEN]) != before:
        st.rerun(scope="app")


def _chosen(workspace: Workspace, name: str, solved: Sequence[str], selected: Sequence[str]) -> None:
    """The chosen scenarios by model in one table, and two of them on both maps."""
    _update_pair(name, solved, selected)
    with st.container(horizontal=True, vertical_alignment="bottom", key="compare-pair"):
        before = st.selectbox("From", solved, key=FROM, help="The plan that runs now, for instance.")
        st.button("Swap", key="compare-swap", icon=":material/swap_horiz:", on_click=_swap)
        after = st.selectbox("To", solved, key=TO)
    if before == after:
        st.caption("Choose two different scenarios to see what changes between them.")
    else:
        requests = tuple(read(workspace, "plan_request", title) for title in (before, after))
        outcomes = (read(workspace, "plan", before), read(workspace, "plan", after))
        side_by_side(workspace, (before, after), requests, outcomes)
    st.header("Model by model", anchor=False)
    columns = list(dict.fromkeys((after, before, *selected)))[:MOST_COLUMNS]
    stored = [
        (name, read(workspace, "plan_request", name), read(workspace, "plan", name)) for name in columns
    ]
    markup = comparison_table(stored)
    saving.exportable_table(markup, "Scenarios by model", "scenarios-by-model", key="compare-columns")


def _swap() -> None:
    state = st.session_state
    state[FROM], state[TO] = state[TO], state[FROM]


def _update_pair(name: str, solved: Sequence[str], selected: Sequence[str]) -> None:
    """Set the pair by the choice in the table, if that changed; a single one is compared with the current scenario."""
    state = st.session_state
    choice = (name, *selected[:2])
    if state.get(CHOSEN) == choice and state.get(FROM) in solved and state.get(TO) in solved:
        return
    state[CHOSEN] = choice
    current = name if name in solved else solved[0]
    # From the older to the newer, which is above it in the table; the current scenario, at the top, is the target.
    pair = list(selected[1::-1])
    if len(pair) < 2:
        other = next((title for title in (*selected, *solved) if title != current), current)
        pair = [other, current]
    state[FROM], state[TO] = pair


def side_by_side(
    workspace: Workspace,
    titles: tuple[str, str],
    requests: tuple[PlanRequest | None, ...],
    outcomes: tuple[PlanOutcome, PlanOutcome],
) -> None:
    """From one plan to another: both maps first, then what changes in words and for each model."""
    comparison = compare(*outcomes)
    st.markdown(f"**From {escape_markdown(titles[0])} to {escape_markdown(titles[1])}**")
    colours = scenario.colours(workspace)
    sides = zip(titles, requests, outcomes, map_marks(comparison), ("before", "after"), strict=True)
    for column, (title, request, outcome, marked, key) in zip(
        st.columns(2, gap="medium"), sides, strict=True
    ):
        with column.container(border=True):
            st.header(escape_markdown(title), anchor=False)
            st.caption(describe_metrics(outcome, request))
            slice_map.render(outcome, request, colours, marked, key=f"compare-{key}", file=title)
    st.caption("On the maps: + new, − removed, ~ another model or share. Hover for the words.")
    _render_changes(comparison)
    markup, file = _models(comparison), f"{titles[0]}-to-{titles[1]}"
    saving.exportable_table(markup, "Models, before and after", file, key="compare-models")


def comparison_table(scenarios: Sequence[tuple[str, PlanRequest | None, PlanOutcome]]) -> str:
    """HTML of several scenarios, a column for each: its figures, then the normalised throughput of every model."""
    head = "<th>scenario</th>" + "".join(f"<th>{html.escape(name)}</th>" for name, _, _ in scenarios)
    verdicts = [verdict_of(request, plan) for _, request, plan in scenarios]
    figures = [totals_of(plan) for _, _, plan in scenarios]
    rows = [
        _line("verdict", [entry.sentence for entry in verdicts], number=False),
        *_facts(verdicts),
        _line("search", [status_badge(plan).text for _, _, plan in scenarios], number=False),
        _line("worst served, ×", [short(entry.least if entry else None) for entry in figures]),
        _line("req/s, all models", [short(entry.total_rps if entry else None) for entry in figures]),
        _line("GPUs used", [_used(plan) for _, _, plan in scenarios]),
        _line("slices", [short(entry.slices if entry else None) for entry in figures]),
        *_money([plan for _, _, plan in scenarios]),
    ]
    rates = [{model.name: model.normalised for model in plan.models} for _, _, plan in scenarios]
    for model in dict.fromkeys(model for by_model in rates for model in by_model):
        rows.append(_line(f"{model}, ×", [short(by_model.get(model)) for by_model in rates]))
    return table_html(head, rows)


def _facts(verdicts: Sequence[PlanVerdict]) -> list[str]:
    """A line for each question that some verdict answers."""
    answers = [{fact.question: fact.text for fact in entry.facts} for entry in verdicts]
    questions = dict.fromkeys(question for entry in answers for question in entry)
    cells = {question: [entry.get(question, UNKNOWN) for entry in answers] for question in questions}
    return [_line(question, texts, number=False) for question, texts in cells.items()]


def _money(plans: Sequence[PlanOutcome]) -> list[str]:
    """The costs of the plans, if one of them has prices."""
    if all(plan.cost_per_hour is None for plan in plans):
        return []
    return [
        _line("cost an hour", [short(plan.cost_per_hour) for plan in plans]),
        _line("cost per million requests", [short(plan.cost_per_million_requests) for plan in plans]),
    ]


def _used(plan: PlanOutcome) -> str:
    return f"{sum(gpu.used for gpu in plan.gpus)} of {len(plan.gpus)}"


def _line(label: str, cells: Sequence[str], *, number: bool = True) -> str:
    kind = ' class="n"' if number else ""
    inner = "".join(f"<td{kind}>{html.escape(text)}</td>" for text in cells)
    return f'<tr><td class="name">{html.escape(label)}</td>{inner}</tr>'


def map_marks(comparison: PlanComparison) -> tuple[Marks, Marks]:
    """The marks of slices on the map of the old plan, and on that of the new one."""
    old: dict[tuple[str, int], str] = {}
    new: dict[tuple[str, int], str] = {}
    for gpu in comparison.gpus:
        for item in gpu.slices:
            if gpu.before_id is not None and item.change != "new" and (word := _before(item)):
                old[gpu.before_id, item.start] = word
            if gpu.after_id is not None and item.change != "gone" and (word := _after(item)):
                new[gpu.after_id, item.start] = word
    return old, new


def _before(item: SliceChange) -> str:
    if item.change == "gone":
        return "goes"
    return "drain" if item.leaving else "changes" if item.changed else ""


def _after(item: SliceChange) -> str:
    if item.change == "new":
        return "new"
    return "other model" if item.arriving else "changes" if item.changed else ""


def _render_changes(comparison: PlanComparison) -> None:
    if comparison.same:
        st.success("Nothing changes but the numbers of equal GPUs.")
        return
    for line in comparison.lines[:MOST_LINES]:
        st.markdown(f"- {escape_markdown(line)}")
    if len(comparison.lines) > MOST_LINES:
        with st.expander(f"{len(comparison.lines) - MOST_LINES} more"):
            for line in comparison.lines[MOST_LINES:]:
                st.markdown(f"- {escape_markdown(line)}")


def _models(comparison: PlanComparison) -> str:
    head = (
        '<th>model</th><th class="n">× before</th><th class="n">× after</th><th class="n">req/s before</th>'
        '<th class="n">req/s after</th><th class="n">change</th><th class="n">service p95 change, ms</th>'
    )
    return table_html(head, [_row(change) for change in comparison.models])


def _row(change: ModelChange) -> str:
    sides = (change.before, change.after)
    times = [exact(round(side.normalised, 3)) if side else "n/a" for side in sides]
    rates = [exact(round(side.throughput_rps, 2)) if side else "n/a" for side in sides]
    percent = "n/a" if change.relative is None else format_relative(change.relative)
    latency = "n/a" if change.latency_ms is None else f"{change.latency_ms:+.4g}"
    cells = "".join(f'<td class="n">{text}</td>' for text in (*times, *rates, percent, latency))
    return f'<tr><td class="name">{html.escape(change.name)}</td>{cells}</tr>'
