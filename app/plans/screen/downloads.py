"""The files of a scenario and of its draft: request, plan, and the report for a review."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import streamlit as st

from app.plans.draft import change_summary
from app.plans.draft.quick_plan import TrialPlan
from app.plans.report import report
from app.session import draft as drafts
from app.session.draft import Draft
from app.session.workspace import read
from app.shell import widgets
from torchsplit_core.pictures.colours import model_colours
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import DayOutcome, DayReplay, PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

Day = tuple[DayOutcome | None, DayReplay | None]
"""A planned day, and what it came to over a trace."""


def render(workspace: Workspace, name: str, request: PlanRequest | None, plan: PlanOutcome | None) -> None:
    """The files of the stored scenario."""
    with st.container(horizontal=True):
        stored = (("plan_request", "Request (JSON)", request), ("plan", "Plan (JSON)", plan))
        for kind, label, value in stored:
            if value is not None:
                data = workspace.get_bytes(kind, name)
                st.download_button(label, data, f"{name}.{kind}.json", "application/json", on_click="ignore")
        if plan is not None:
            _report("Report (HTML)", name, name, request, plan, partial(_day_of, workspace, name, request))


def render_draft(name: str, stored: PlanRequest, draft: Draft, trial_plan: TrialPlan) -> None:
    """The files of the draft on screen, named so, since the stored plan is another one."""
    st.caption("These files are of the draft on screen, which is not kept yet.")
    file = f"{name}.draft"
    with st.container(horizontal=True):
        widgets.json_button("Request of the draft (JSON)", trial_plan.request, f"{file}.plan_request.json")
        if trial_plan.outcome is not None:
            widgets.json_button("Plan of the draft (JSON)", trial_plan.outcome, f"{file}.plan.json")
            summary = change_summary.describe_draft(draft.content.said, drafts.changes(draft, stored))
            shown = (trial_plan.request, trial_plan.outcome)
            _report("Report of the draft (HTML)", file, f"{name}, draft: {summary}", *shown)


def _day_of(workspace: Workspace, name: str, request: PlanRequest | None) -> Day:
    """The scenario's planned day and its simulation over a trace, where they are of the request as it stands."""
    day: DayOutcome | None = read(workspace, "day", name)
    replay: DayReplay | None = read(workspace, "day_replay", name)
    fingerprint = None if request is None else request_hash(request)
    return (
        day if day is not None and day.request_sha256 == fingerprint else None,
        replay if replay is not None and replay.request_sha256 == fingerprint else None,
    )


def _report(
    label: str,
    file: str,
    title: str,
    request: PlanRequest | None,
    plan: PlanOutcome,
    day: Callable[[], Day] = lambda: (None, None),
) -> None:
    # scenario.colours begins with these models: the report has the page's colours.
    served = [model.name for model in (request or plan).models]
    about = "One file for a review: map, tables, curves, what is proven, the request. It opens offline."

    def make() -> str:
        # The day is read when the file is asked for: other runs of the page need it nowhere.
        return report(title, request, plan, model_colours(served), *day())

    st.download_button(label, make, f"{file}.html", "text/html", on_click="ignore", help=about)
