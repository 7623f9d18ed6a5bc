"""The jobs of a workspace: what runs, what ran, how it ended, and what it printed."""

from __future__ import annotations

import contextlib
import datetime

import streamlit as st

from app.format.badges import Colour
from app.models.cuts.form import describe_job
from app.overview import job_spans
from app.shell import job_panel, navigation, result_location, widgets
from torchsplit_core import jobs
from torchsplit_core.jobs import JobStatus
from torchsplit_core.jobs.job_kinds import PARTITION, from_stored
from torchsplit_core.pictures.numbers import duration, escape_markdown
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import JobRecord, Workspace

COLOURS: dict[str, Colour] = {"running": "blue", "done": "green", "failed": "red", "cancelled": "gray"}
MOST = 40
"""Jobs on the page until the user asks for all."""


def render(workspace: Workspace) -> None:
    """The whole page."""
    statuses = jobs.statuses(workspace)
    if not statuses:
        st.write(
            "Here you will see the work of this workspace (tracing, profiling, cutting, planning, placing) and how it "
            "ended."
        )
        return
    records = {record.id: record for record in workspace.job_records()}
    newest = {status.title: status.id for status in reversed(statuses)}
    states = [state for state in COLOURS if any(status.state == state for status in statuses)]
    wanted = st.segmented_control("State", states, key="activity-state", selection_mode="multi")
    filtered = [status for status in statuses if not wanted or status.state in wanted]
    show_all = len(filtered) <= MOST or st.toggle(f"All {len(filtered)}", key="activity-all")
    for status in filtered if show_all else filtered[:MOST]:
        with st.container(border=True, key=f"work-{status.id}", gap="xsmall"):
            _job(workspace, status, records.get(status.id), latest=newest[status.title] == status.id)


def _job(workspace: Workspace, status: JobStatus, record: JobRecord | None, *, latest: bool) -> None:
    """One job with its outcome and log; only the `latest` of several with one title can be started again."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**{escape_markdown(status.title)}**", width="content")
        widgets.badge(status.state, COLOURS[status.state])
        when = format_when(status, record.created if record else None)
        st.caption(escape_markdown(" · ".join(filter(None, (describe_settings(record), when)))))
        place = result_location.location_of(record) if record else None
        if place is not None and status.state == "done":
            navigation.link(place[0], "Open the result", place[1])
        if latest and status.state in ("failed", "cancelled"):
            job_panel.render_retry(workspace, status)
    if status.fault:
        st.markdown(escape_markdown(status.fault))
    log = st.expander("Log", key=f"log-{status.id}", on_change="rerun")
    if log.open:
        text = jobs.log(workspace, status.id)
        if text:
            log.code(text, language=None, wrap_lines=True)
        else:
            log.caption("It printed nothing.")
    timeline = st.expander("Timeline", key=f"timeline-{status.id}", on_change="rerun")
    if timeline.open:
        with timeline:
            job_spans.render(workspace, status)


def describe_settings(record: JobRecord | None) -> str:
    """What tells jobs of one title apart: of cuts what was asked; "" of others, and where damage hides it."""
    if record is None or record.name != PARTITION:
        return ""
    with contextlib.suppress(InputFault):
        return describe_job(from_stored(PARTITION, record.parameters))
    return ""


def format_when(status: JobStatus, begun: float | None) -> str:
    """When it began and how long it ran."""
    parts = [datetime.datetime.fromtimestamp(begun).strftime("%Y-%m-%d %H:%M")] if begun else []
    return " · ".join([*parts, *([duration(status.seconds)] if status.seconds else [])])


def recent(workspace: Workspace, most: int) -> None:
    """The latest jobs, a line each."""
    statuses = [status for status in jobs.statuses(workspace) if not job_panel.kind_of(status).quiet]
    for status in statuses[:most]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            widgets.badge(status.state, COLOURS[status.state])
            reason = f": {status.fault}" if status.state == "failed" and status.fault else ""
            st.caption(escape_markdown(f"{status.title}{reason}"))
    if not statuses:
        st.caption("None yet.")
