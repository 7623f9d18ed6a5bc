"""Scenarios side by side: all in one table, and from one of them to another on both maps and in words."""

from __future__ import annotations

import html
from collections.abc import Sequence

import streamlit as st

from app.charts.slice_values import Marks
from app.format.html import table_html
from app.format.numbers import UNKNOWN, exact, plain, short
from app.plan import fleet
from app.plan.summary import SOLVED, metrics, status_badge
from app.plan.verdict import verdict_of
from app.session import scenario
from app.session.thing import SCENARIO
from app.session.workspace import read
from torchsplit_core.planning.comparison.changes import ModelChange, SliceChange
from torchsplit_core.planning.comparison.compare import Comparison, compare
from torchsplit_core.planning.comparison.figures import figures_of
from torchsplit_core.responding.verdict import Verdict
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

MOST_COLUMNS = 4
"""Scenarios in the table before one chooses."""
MOST_LINES = 12
"""Sentences in sight; the rest unfold."""


def show(workspace: Workspace, name: str, plan: PlanOutcome | None) -> None:
    """The tab: from the scenario chosen to the one shown."""
    others = [other for other in SCENARIO.known(workspace) if other != name and _solved(workspace, other)]
    if plan is None or plan.status not in SOLVED or not others:
        st.write(
            "Here two scenarios stand side by side: which slices change, which models gain or lose, what must be "
            "drained. Duplicate this scenario (Scenario …), change the copy and plan it."
        )
        return
    _table(workspace, [name, *others])
    chosen = st.selectbox("From", others, key="compare-from", help="The plan that runs now, for instance.")
    before = read(workspace, "plan", chosen)
    asked = tuple(read(workspace, "plan_request", title) for title in (chosen, name))
    side_by_side(workspace, (chosen, name), asked, (before, plan))


def side_by_side(
    workspace: Workspace,
    titles: tuple[str, str],
    asked: tuple[PlanRequest | None, ...],
    outcomes: tuple[PlanOutcome, PlanOutcome],
) -> None:
    """From one plan to another: both maps first, then what changes in words and for each model."""
    found = compare(*outcomes)
    st.markdown(f"**From {plain(titles[0])} to {plain(titles[1])}**")
    colours = scenario.colours(workspace)
    for column, title, request, outcome, marked, key in zip(
        st.columns(2, gap="medium"),
        titles,
        asked,
        outcomes,
        marks_of(found),
        ("before", "after"),
        strict=True,
    ):
        with column.container(border=True):
            st.header(plain(title), anchor=False)
            told = " · ".join(f"{plain(item.label)}: {item.value}" for item in metrics(outcome, request)[:3])
            st.caption(told)
            fleet.show(outcome, request, colours, marked, key=f"compare-{key}", file=title)
    st.caption("On the maps: + new, − removed, ~ another model or share. Hover for the words.")
    _words(found)
    st.html(_models(found))


def _table(workspace: Workspace, known: Sequence[str]) -> None:
    """One column a scenario, the one shown first; so many as one chooses."""
    chosen = st.multiselect("Scenarios", known, known[:MOST_COLUMNS], key=f"compare-all {known[0]}")
    if chosen:
        st.html(
            table(
                [(one, read(workspace, "plan_request", one), read(workspace, "plan", one)) for one in chosen]
            )
        )


def table(scenarios: Sequence[tuple[str, PlanRequest | None, PlanOutcome]]) -> str:
    """HTML of several scenarios: what each gives, one column a scenario, then r of every model."""
    head = "<th>scenario</th>" + "".join(f"<th>{html.escape(name)}</th>" for name, _, _ in scenarios)
    verdicts = [verdict_of(asked, plan) for _, asked, plan in scenarios]
    figures = [figures_of(plan) for _, _, plan in scenarios]
    rows = [
        _line("verdict", [one.sentence for one in verdicts], number=False),
        *_facts(verdicts),
        _line("search", [status_badge(plan).text for _, _, plan in scenarios], number=False),
        _line("worst served, ×", [short(one.least if one else None) for one in figures]),
        _line("req/s, all models", [short(one.total_rps if one else None) for one in figures]),
        _line("GPUs used", [_used(plan) for _, _, plan in scenarios]),
        _line("slices", [short(one.slices if one else None) for one in figures]),
    ]
    rates = [{model.name: model.normalised for model in plan.models} for _, _, plan in scenarios]
    for model in dict.fromkeys(model for found in rates for model in found):
        rows.append(_line(f"{model}, ×", [short(found.get(model)) for found in rates]))
    return table_html(head, rows)


def _facts(verdicts: Sequence[Verdict]) -> list[str]:
    """A line a question that one of them answers."""
    answers = [{fact.question: fact.words for fact in one.facts} for one in verdicts]
    questions = dict.fromkeys(question for one in answers for question in one)
    return [
        _line(question, [one.get(question, UNKNOWN) for one in answers], number=False)
        for question in questions
    ]


def _used(plan: PlanOutcome) -> str:
    return f"{sum(gpu.used for gpu in plan.gpus)} of {len(plan.gpus)}"


def _line(label: str, cells: Sequence[str], *, number: bool = True) -> str:
    kind = ' class="n"' if number else ""
    inner = "".join(f"<td{kind}>{html.escape(text)}</td>" for text in cells)
    return f'<tr><td class="name">{html.escape(label)}</td>{inner}</tr>'


def marks_of(found: Comparison) -> tuple[Marks, Marks]:
    """What to say of slices on the map of the old plan, and on that of the new one."""
    old: dict[tuple[str, int], str] = {}
    new: dict[tuple[str, int], str] = {}
    for gpu in found.gpus:
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


def _solved(workspace: Workspace, name: str) -> bool:
    found = read(workspace, "plan", name)
    return found is not None and found.status in SOLVED


def _words(found: Comparison) -> None:
    if found.same:
        st.success("Nothing changes but the numbers of equal GPUs.")
        return
    for line in found.lines[:MOST_LINES]:
        st.markdown(f"- {plain(line)}")
    if len(found.lines) > MOST_LINES:
        with st.expander(f"{len(found.lines) - MOST_LINES} more"):
            for line in found.lines[MOST_LINES:]:
                st.markdown(f"- {plain(line)}")


def _models(found: Comparison) -> str:
    head = (
        '<th>model</th><th class="n">× before</th><th class="n">× after</th><th class="n">req/s before</th>'
        '<th class="n">req/s after</th><th class="n">change</th><th class="n">service p95 change, ms</th>'
    )
    return table_html(head, [_row(change) for change in found.models])


def _row(change: ModelChange) -> str:
    sides = (change.before, change.after)
    times = [exact(round(side.normalised, 3)) if side else "n/a" for side in sides]
    rates = [exact(round(side.throughput_rps, 2)) if side else "n/a" for side in sides]
    percent = "n/a" if change.relative is None else f"{100 * change.relative:+.3g} %"
    latency = "n/a" if change.latency_ms is None else f"{change.latency_ms:+.4g}"
    cells = "".join(f'<td class="n">{text}</td>' for text in (*times, *rates, percent, latency))
    return f'<tr><td class="name">{html.escape(change.name)}</td>{cells}</tr>'
