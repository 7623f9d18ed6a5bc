"""Work in progress, in a place of its own at the foot of every page, and failures on the page that they belong to.

Everything is read from the workspace, so the panel is the same after a reload and in another tab. All work, with how
it ended, is on the page Activity.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import streamlit as st

from app.format.numbers import THIN, duration, plain
from app.session import trust
from torchsplit_core import jobs
from torchsplit_core.isolation.execution import asks_for_trust
from torchsplit_core.jobs.names import JOBS, JobKind, JobParameters
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

REFRESH_S = 0.5
_DISMISSED = "dismissed jobs"
_MOST_FAILURES = 3
_MOST_RUNNING = 3
"""Shown at once; Activity has them all."""
_UNKNOWN = JobKind("", JobParameters)


def show(
    workspace: Workspace,
    failures: Collection[str] = (),
    apart: Collection[str] = (),
    about: str | None = None,
) -> None:
    """The panel, which refreshes itself, and the page once when a job ends or stores a result; and the `failures` of
    these kinds of work, but for the jobs `apart`, of all things or of one (`about`)."""
    statuses = tuple(status for status in jobs.statuses(workspace) if not kind_of(status).quiet)
    running = tuple(status.id for status in statuses if status.state == "running")
    with st.container(key="jobs"):
        if running:
            st.fragment(_running, run_every=REFRESH_S)(workspace, running, _stored(workspace))
    told = [status for status in statuses if status.name in failures]
    if about is not None and any(status.state == "failed" for status in told):
        own = {record.id for record in workspace.job_records() if about in _subjects(record.parameters)}
        told = [status for status in told if status.id in own]
    _failures(workspace, told, apart)


def _subjects(parameters: Any) -> tuple[Any, ...]:
    """The names of what a job works on, of stored parameters that may be anything in a damaged store."""
    if not isinstance(parameters, dict):
        return ()
    sources = parameters.get("sources")
    many = sources if isinstance(sources, list) else []
    return (parameters.get("source"), parameters.get("request"), *many)


def kind_of(status: jobs.JobStatus) -> JobKind:
    """The job's kind; one that this TorchSplit does not know is shown, and cannot go on."""
    return JOBS.get(status.name, _UNKNOWN)


def _stored(workspace: Workspace) -> tuple[Any, ...]:
    return workspace.artifacts()


def _running(workspace: Workspace, watched: tuple[str, ...], stored: tuple[Any, ...]) -> None:
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


def progress(status: jobs.JobStatus) -> None:
    """How far a job is, as a bar with its words."""
    text = f"**{plain(status.title)}** · {plain(status.message)} · {duration(status.seconds)}"
    st.progress(status.share, text=f"{text} · {100 * status.share:.0f}{THIN}%")


def _failures(workspace: Workspace, statuses: Sequence[jobs.JobStatus], apart: Collection[str]) -> None:
    """The last failure of each piece of work, until it is dismissed or a later attempt replaces it."""
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
            st.error(f"{plain(status.title)} failed. {plain(status.fault or 'No reason was given.')}")
            offer_resume(workspace, status)
            if st.button("Dismiss", key=f"dismiss-{status.id}"):
                workspace.set_setting(_DISMISSED, [*dismissed, status.id][-200:])
                st.rerun()


def offer_resume(workspace: Workspace, status: jobs.JobStatus) -> None:
    """For work that can go on: a button that does, with the parameters it was started with."""
    if not kind_of(status).resumable:
        return
    record = next(found for found in workspace.job_records() if found.id == status.id)
    # The start of a job would leave the trust out, and a model be estimated that was to be measured.
    barred = trust.refused() and asks_for_trust(record.parameters)
    if st.button(
        "Resume",
        type="primary",
        key=f"resume-{status.id}",
        disabled=barred,
        help="It executes an uploaded file, and this server executes none."
        if barred
        else "Go on where it stood: what was measured or found is taken over, the rest is done now.",
    ):
        try:
            jobs.resume(workspace, status.id)
        except InputFault as fault:
            st.error(plain(str(fault)))
        else:
            st.rerun()
