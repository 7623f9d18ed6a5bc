"""Two scenarios side by side: what changes from one plan to the other, in words and on both maps."""

from __future__ import annotations

import html

import streamlit as st

from app.charts.slice_values import Marks
from app.format.html import table_html
from app.format.numbers import exact, plain
from app.plan import fleet
from app.plan.summary import SOLVED, metrics
from app.session import scenario
from app.session.workspace import read
from torchsplit_core.planning.comparison.changes import ModelChange, SliceChange
from torchsplit_core.planning.comparison.compare import Comparison, compare
from torchsplit_core.values import PlanOutcome
from torchsplit_core.workspace.store import Workspace

MOST_LINES = 12
"""Sentences in sight; the rest unfold."""


def show(workspace: Workspace, name: str, plan: PlanOutcome | None) -> None:
    """The tab: from the scenario chosen to the one shown."""
    others = [other for other in scenario.known(workspace) if other != name and _solved(workspace, other)]
    if plan is None or plan.status not in SOLVED or not others:
        st.write(
            "Here two scenarios stand side by side: which slices change, which models gain or lose, what must be "
            "drained. Duplicate this scenario (Scenario …), change the copy and plan it."
        )
        return
    chosen = st.selectbox("From", others, key="compare-from", help="The plan that runs now, for instance.")
    before = read(workspace, "plan", chosen)
    found = compare(before, plan)
    st.markdown(f"**From {plain(chosen)} to {plain(name)}**")
    _words(found)
    st.html(_models(found))
    st.caption("On the maps: + new, − goes, ~ other tenants or shares; hover for the word.")
    marks = marks_of(found)
    colours = scenario.colours(workspace)
    for column, title, outcome, marked, key in zip(
        st.columns(2, gap="medium"), (chosen, name), (before, plan), marks, ("before", "after"), strict=True
    ):
        with column.container(border=True):
            st.header(plain(title), anchor=False)
            asked = read(workspace, "plan_request", title)
            told = " · ".join(f"{plain(item.label)}: {item.value}" for item in metrics(outcome, asked)[:3])
            st.caption(told)
            fleet.show(outcome, asked, colours, marked, key=f"compare-{key}", file=title)


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
