"""All scenarios of a workspace in one table that can be sorted and filtered: their figures, verdicts and tags.

A workspace may have thousands. Each run of the page reads plans for a moment, for all sessions; the table shows what is
known and refreshes itself until everything is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import streamlit as st

from app.charts.theme import theme_name
from app.components import saving
from app.format.badges import AS_TEXT
from app.plans.summary import status_badge
from app.plans.verdict import COLOURS, verdict_of
from app.session.result_kind import SCENARIO
from app.session.workspace import read_artifact
from app.shell import tags
from torchsplit_core.latency_slo.verdict import Level, PlanVerdict
from torchsplit_core.pictures.numbers import UNKNOWN, counted, exact
from torchsplit_core.planning.comparison.plan_totals import PlanTotals, totals_of
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Artifact, Workspace

MOMENT_S, AGAIN_S = 0.6, 1.5
"""Seconds of reading in a run of the page, and seconds until the next run."""
MOST_JUDGED = 20
"""Scenarios with a verdict: each is simulated under load, for a tenth of a second or more."""
MOST_STYLED = 500
"""Rows up to which verdicts are coloured."""
LEVELS: Mapping[Level, str] = {"green": "met", "amber": "partly", "red": "not met"}
"""The level of a verdict in words."""
ROW_PX, EDGE_PX, MOST_ROWS = 35, 14, 10
CHOSEN = "compare-chosen"
"""The session's key of the chosen scenarios."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """A plan in the table: the state of its search, its figures (None: no plan), its GPUs."""

    search: str
    figures: PlanTotals | None
    gpus: int


@dataclass(frozen=True, slots=True)
class StoredScenario:
    """A stored scenario: its name, request and plan."""

    name: str
    request: Artifact | None
    plan: Artifact | None

    @property
    def key(self) -> tuple[str, str]:
        """The hashes of both."""
        return (self.request.sha256 if self.request else "", self.plan.sha256 if self.plan else "")


@st.cache_resource(show_spinner=False)
def _summaries() -> dict[str, PlanSummary]:
    """By the content of the plan, for all sessions."""
    return {}


@st.cache_resource(show_spinner=False)
def _verdicts() -> dict[tuple[str, str], PlanVerdict]:
    """By the contents of request and plan, for all sessions."""
    return {}


def list_scenarios(workspace: Workspace, first: str) -> list[StoredScenario]:
    """The scenarios, the `first` before the others, which are newest first."""
    requests: dict[str, Artifact] = {}
    plans: dict[str, Artifact] = {}
    for artifact in workspace.artifacts():
        if artifact.kind in ("plan_request", "plan"):
            (requests if artifact.kind == "plan_request" else plans)[artifact.name] = artifact
    names = dict.fromkeys((first, *requests, *plans))
    return [StoredScenario(name, requests.get(name), plans.get(name)) for name in names]


def load_summaries(
    workspace: Workspace,
    scenarios: Sequence[StoredScenario],
    moment_s: float,
    shown: Sequence[StoredScenario] = (),
) -> int:
    """Read plans for that moment, `shown` ones first, then judge the first MOST_JUDGED of both.

    Returns how many are still to be read or judged.
    """
    end, summaries, verdicts = time.monotonic() + moment_s, _summaries(), _verdicts()
    planned = [[scenario for scenario in some if scenario.plan is not None] for some in (shown, scenarios)]
    first = [scenario for some in planned for scenario in some[:MOST_JUDGED]]
    unread = {entry.key[1]: entry for some in planned for entry in some if entry.key[1] not in summaries}
    unjudged = {entry.key: entry for entry in first if entry.key not in verdicts}
    begun = False
    # At least one in each run, so that it ends.
    while (unread or unjudged) and (not begun or time.monotonic() < end):
        begun = True
        if unread:
            _summarise(workspace, unread.pop(next(iter(unread))))
        else:
            _judge(workspace, unjudged.pop(next(iter(unjudged))))
    return len(unread) + len(unjudged)


def _summarise(workspace: Workspace, scenario: StoredScenario) -> None:
    assert scenario.plan is not None
    try:
        plan = read_artifact(workspace, scenario.plan)
        summary = PlanSummary(status_badge(plan).text, totals_of(plan), len(plan.gpus))
    except InputFault:
        summary = PlanSummary("its file is damaged", None, 0)
    _summaries()[scenario.plan.sha256] = summary


def _judge(workspace: Workspace, scenario: StoredScenario) -> None:
    assert scenario.plan is not None
    try:
        request = read_artifact(workspace, scenario.request) if scenario.request else None
        judged = verdict_of(request, read_artifact(workspace, scenario.plan))
    except InputFault as fault:
        judged = PlanVerdict("amber", str(fault))
    _verdicts()[scenario.key] = judged


def has_plan(scenario: StoredScenario) -> bool:
    """Whether its plan has been read and is solved."""
    summary = _summaries().get(scenario.key[1])
    return summary is not None and summary.figures is not None


def table_row(scenario: StoredScenario, given: Sequence[str]) -> dict[str, Any]:
    """A scenario's row as far as its plan was read; `given` are its tags."""
    summary, verdict = _summaries().get(scenario.key[1]), _verdicts().get(scenario.key)
    figures = summary.figures if summary else None
    changed = max((each.changed for each in (scenario.request, scenario.plan) if each), default=None)
    return {
        "scenario": scenario.name,
        "verdict": LEVELS[verdict.level] if verdict else None if scenario.plan else "not planned",
        "worst served, ×": figures.least if figures else None,
        "req/s": figures.total_rps if figures else None,
        "GPUs used": figures.gpus_used if figures else None,
        "of": summary.gpus if summary else None,
        "slices": figures.slices if figures else None,
        "search": summary.search if summary else None,
        "tags": list(given),
        "changed": None if changed is None else datetime.fromtimestamp(changed, UTC),
        "in words": verdict.sentence if verdict else None,
    }


def table_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows with numeric columns, so that they sort."""
    made = pd.DataFrame(list(rows))
    for column in ("GPUs used", "of", "slices"):
        made[column] = made[column].astype("Int64")
    for column in ("worst served, ×", "req/s"):
        made[column] = made[column].astype("Float64")
    made["changed"] = pd.to_datetime(made["changed"], utc=True)
    return made


def render_filter(
    workspace: Workspace, name: str, scenarios: Sequence[StoredScenario]
) -> list[StoredScenario]:
    """The filter above the table, and the tags of the current scenario; the scenarios that pass."""
    given = SCENARIO.tags(workspace)
    text_column, tagged, tags_column = st.columns(3)
    with text_column:
        sought = st.text_input("Find a scenario", key="compare-find", placeholder="Part of its name")
    with tagged:
        tag = tags.render_filter(given, key="compare-tags")
    with tags_column:
        label = "Tags of the scenario shown"
        tags.render_field(workspace, SCENARIO, name, key="compare-own-tags", label=label)
    text = sought.strip().casefold()
    named = [scenario for scenario in scenarios if text in scenario.name.casefold()]
    return [scenario for scenario in named if set(tag) <= set(given.get(scenario.name, ()))]


def render(workspace: Workspace, name: str, shown: Sequence[StoredScenario], left: int) -> None:
    """The table as far as plans were read; the session keeps its choice under CHOSEN. `left` plans are unread."""
    if not shown:
        st.caption("No scenario is like that.")
        return
    given = SCENARIO.tags(workspace)
    names = [scenario.name for scenario in shown]
    before = st.session_state[CHOSEN]
    made = table_of([table_row(scenario, given.get(scenario.name, ())) for scenario in shown])
    config = st.column_config
    event = st.dataframe(
        _style(made, shown), hide_index=True, placeholder=UNKNOWN, alt="Scenarios: select two to compare them",
        # Another set of rows is another table: a selection is by their numbers.
        key=f"compare-table {hash(tuple(names))}", on_select="rerun", selection_mode="multi-row",
        selection_default={"selection": {"rows": [names.index(scenario) for scenario in before if scenario in names]}},
        height=(min(len(names), MOST_ROWS) + 1) * ROW_PX + EDGE_PX,
        column_config={
            "scenario": config.ButtonColumn(
                width=140, type="tertiary", alignment="left", key="compare-open", help="Opens it, at this tab"
            ),
            "verdict": config.TextColumn(width=80, help="Whether it gives what is asked: at the end in words"),
            "worst served, ×": config.NumberColumn(format="%.4g", width=110, help="What that model gets of its demand"),
            "req/s": config.NumberColumn(format="%.6g", help="Of all models"),
            "GPUs used": config.NumberColumn(format="%d", width=80), "of": config.NumberColumn(format="%d", width=50),
            "slices": config.NumberColumn(format="%d", width=60),
            "search": config.TextColumn(help="How far it is proven"),
            "changed": config.DatetimeColumn(format="distance"),
            "in words": config.TextColumn(width=500),
        },
    )  # fmt: skip
    if (click := st.session_state.get("compare-open")) is not None:
        SCENARIO.choose(workspace, names[click["row"]])
        st.rerun(scope="app")
    # Scenarios that the filter hides stay chosen.
    st.session_state[CHOSEN] = [scenario for scenario in before if scenario not in names] + [
        names[place] for place in sorted(event["selection"]["rows"]) if place < len(names)
    ]
    rows = made.assign(tags=made["tags"].map(", ".join))
    saving.csv_button(rows, "scenarios", key="compare-table", alt="Scenarios")
    st.caption(_count(name, shown, left))


def _count(name: str, shown: Sequence[StoredScenario], left: int) -> str:
    """The number of scenarios, and of figures to be read, in a line that is always there."""
    text = counted(len(shown), "scenario") + (", first the one shown" if shown[0].name == name else "")
    if left:
        text += f", {exact(left)} figures still to be read"
    if len(shown) > MOST_JUDGED:
        text += f". Verdicts are worked out for the first {MOST_JUDGED}: narrow the list to see others"
    return f"{text}."


def _style(made: pd.DataFrame, shown: Sequence[StoredScenario]) -> Any:
    """Verdicts in the colours of their levels, unless there are very many rows."""
    if len(made) > MOST_STYLED:
        return made
    ink, verdicts = AS_TEXT[theme_name(st.context.theme.type == "dark")], _verdicts()
    styles = [
        f"color: {ink[COLOURS[verdict.level]]}" if (verdict := verdicts.get(scenario.key)) else ""
        for scenario in shown
    ]
    return made.style.apply(lambda column: styles, subset=["verdict", "in words"])
