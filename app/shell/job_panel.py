"""Running and just ended jobs, in a panel at the foot of every page; failures, on the page they belong to.

The workspace says which jobs run, so a reload and another tab show the same; the session knows which have just ended:
those that it saw running. The page Activity lists all jobs, with how they ended.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import streamlit as st

from app.session import trust
from app.shell import navigation, result_location
from torchsplit_core import jobs
from torchsplit_core.isolation.trust_policy import requests_trust
from torchsplit_core.jobs.job_kinds import JOBS, TRACE, TRAIN, TRAIN_ON, WHAT_IF, JobKind, JobParameters
from torchsplit_core.pictures.numbers import THIN, duration, escape_markdown
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import JobRecord, Workspace

REFRESH_S = 0.5
_DISMISSED = "dismissed jobs"
_MOST_FAILURES = 3
_MOST_RUNNING = 3
"""How many the panel shows; Activity has all."""
_MOST_ENDED = 2
_SEEN, _ENDED = "jobs seen running", "jobs that ended here"
_UNKNOWN = JobKind("", JobParameters)
_ELSEWHERE = (WHAT_IF, TRAIN, TRAIN_ON)
"""Kinds that users start again elsewhere: at the slider, or on the page of the run."""


def render(
    workspace: Workspace,
    failures: Collection[str] = (),
    apart: Collection[str] = (),
    about: str | None = None,
) -> None:
    """Draw the panel, which refreshes itself, and reruns the page when a job ends or stores a result.

    Then draw the `failures` of these kinds, without the jobs `apart`, of all things or of one (`about`).
    """
    statuses = tuple(status for status in jobs.statuses(workspace) if not kind_of(status).quiet)
    running = tuple(status.id for status in statuses if status.state == "running")
    failed = [status for status in statuses if status.name in failures]
    if about is not None and any(status.state == "failed" for status in failed):
        job_ids = {record.id for record in workspace.job_records() if about in _subjects(record.parameters)}
        failed = [status for status in failed if status.id in job_ids]
    ended = _ended_here(workspace, statuses, running)
    with st.container(key="jobs"):
        _render_ended(workspace, ended, {*apart, *(status.id for status in failed)})
        if running:
            st.fragment(_render_running, run_every=REFRESH_S)(workspace, running, _stored(workspace))
    _failures(workspace, failed, apart)


def _subjects(parameters: Any) -> tuple[Any, ...]:
    """The names that a job works on; a damaged store may have anything as its parameters."""
    if not isinstance(parameters, dict):
        return ()
    sources = parameters.get("sources")
    many = sources if isinstance(sources, list) else []
    return (parameters.get("source"), parameters.get("request"), *many)


def kind_of(status: jobs.JobStatus) -> JobKind:
    """The job's kind; the panel shows a job of an unknown kind, but cannot resume it."""
    return JOBS.get(status.name, _UNKNOWN)


def _stored(workspace: Workspace) -> tuple[Any, ...]:
    return workspace.artifacts()


def _render_running(workspace: Workspace, watched: tuple[str, ...], stored: tuple[Any, ...]) -> None:
    statuses = {status.id: status for status in jobs.statuses(workspace)}
    still = [statuses[name] for name in watched if name in statuses and statuses[name].state == "running"]
    if len(still) < len(watched) or _stored(workspace) != stored:
        st.rerun(scope="app")
    for status in still[:_MOST_RUNNING]:
        with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"job-{status.id}"):
            progress(status)
            if st.button(
                "Cancel", key=f"cancel-{status.id}", help="End this work; what it has stored so far stays."
            ):
                jobs.cancel(workspace, status.id)
                st.rerun(scope="app")


def _ended_here(
    workspace: Workspace, statuses: Sequence[jobs.JobStatus], running: Sequence[str]
) -> list[jobs.JobStatus]:
    """The jobs that this session saw running and that ended, until the user closes them or sees their results."""
    seen: set[str] = st.session_state.get(f"{_SEEN} {workspace.id}", set())
    ended: set[str] = st.session_state.get(f"{_ENDED} {workspace.id}", set())
    ended = ended | (seen - set(running))
    over = [status for status in statuses if status.id in ended and status.state in ("done", "failed")]
    st.session_state[f"{_SEEN} {workspace.id}"] = set(running)
    st.session_state[f"{_ENDED} {workspace.id}"] = {status.id for status in over}
    return over


def _render_ended(workspace: Workspace, ended: Sequence[jobs.JobStatus], reported: Collection[str]) -> None:
    """Draw a line with a link for each result and a reason for each failure, without those already `reported`."""
    if not ended:
        return
    records = {record.id: record for record in workspace.job_records()}
    known: set[object] = set()
    lines = 0
    for status in ended:
        place = result_location.location_of(records[status.id]) if status.id in records else None
        same = place or status.title
        if (place is not None and result_location.is_shown(place)) or status.id in reported:
            _close(workspace, status.id)
        elif same not in known and lines < _MOST_ENDED:
            # A plan and its explanation share a line.
            lines += 1
            _line(workspace, status, place)
        known.add(same)


def _line(workspace: Workspace, status: jobs.JobStatus, place: tuple[str, str | None] | None) -> None:
    with st.container(
        border=True, horizontal=True, vertical_alignment="center", key=f"job-ended-{status.id}"
    ):
        if status.state == "failed":
            st.markdown(
                f"**{escape_markdown(status.title)}** failed. {escape_markdown(status.fault or 'No reason was given.')}"
            )
            render_retry(workspace, status)
        else:
            st.markdown(f"**{escape_markdown(status.title)}** is done.", width="content")
            if place is not None:
                navigation.link(place[0], "Open it", place[1], icon=":material/open_in_new:")
        st.button(
            "Close", key=f"close-{status.id}", type="tertiary", on_click=_close, args=(workspace, status.id)
        )


def _close(workspace: Workspace, job: str) -> None:
    st.session_state[f"{_ENDED} {workspace.id}"] = st.session_state[f"{_ENDED} {workspace.id}"] - {job}


def progress(status: jobs.JobStatus) -> None:
    """Draw the progress of a job as a bar with its words."""
    text = f"**{escape_markdown(status.title)}** · {escape_markdown(status.message)} · {duration(status.seconds)}"
    st.progress(status.share, text=f"{text} · {100 * status.share:.0f}{THIN}%")


def _failures(workspace: Workspace, statuses: Sequence[jobs.JobStatus], apart: Collection[str]) -> None:
    """Draw the last failure of each job title, until the user dismisses it or a later attempt replaces it."""
    newest = {status.title: status for status in reversed(statuses)}
    failed = [
        status
        for status in statuses
        if status.state == "failed" and newest[status.title] is status and status.id not in apart
    ]
    if not failed:
        return
    dismissed = workspace.setting(_DISMISSED, [])
    for status in [status for status in failed if status.id not in dismissed][:_MOST_FAILURES]:
        with st.container(horizontal=True, vertical_alignment="center", key=f"failed-{status.id}"):
            st.error(
                f"{escape_markdown(status.title)} failed. {escape_markdown(status.fault or 'No reason was given.')}"
            )
            render_retry(workspace, status)
            if st.button("Dismiss", key=f"dismiss-{status.id}"):
                workspace.set_setting(_DISMISSED, [*dismissed, status.id][-200:])
                st.rerun()


def render_retry(workspace: Workspace, status: jobs.JobStatus) -> None:
    """Draw the button that starts the job again with the same parameters; a resumable kind continues."""
    kind = kind_of(status)
    if status.name in _ELSEWHERE or kind is _UNKNOWN or is_of_content(status):
        return
    record = next(candidate for candidate in workspace.job_records() if candidate.id == status.id)
    # A new start would drop the trust, and so estimate a model that the user wanted measured.
    barred = trust.is_refused() and requests_trust(record.parameters)
    if st.button(
        "Resume" if kind.resumable else "Try again",
        type="primary" if kind.resumable else "secondary",
        key=f"resume-{status.id}",
        disabled=barred,
        help=_help(record, barred=barred, resumable=kind.resumable),
    ):
        try:
            jobs.resume(workspace, status.id)
        except InputFault as fault:
            st.error(escape_markdown(str(fault)))
        else:
            st.rerun()


def is_of_content(status: jobs.JobStatus) -> bool:
    """Whether the job read a .pt2 file and its content was at fault, which it would be again."""
    source = status.title.partition(" ")[2]
    return status.name == TRACE and source.endswith(".pt2") and (status.fault or "").startswith(f"{source}: ")


def _help(record: JobRecord, *, barred: bool, resumable: bool) -> str:
    """What the button does, and whether it executes a file."""
    if barred:
        return "It executes an uploaded file, and this server executes none."
    what = (
        "Go on where it stood: what is measured or calculated already stays, the rest is done now."
        if resumable
        else "Start the same work again, with the parameters it had."
    )
    if requests_trust(record.parameters):
        what += " It executes the uploaded file that you trusted, and only if the file has not changed since."
    return what
