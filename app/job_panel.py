"""Running work at the head of every page: progress, seconds, Cancel; a failure is one message.

Everything is read from the workspace, so the panel is the same after a reload and in another tab.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import execution
from app.numbers import THIN, duration, plain
from torchsplit_core import jobs
from torchsplit_core.isolation.execution import asks_for_trust
from torchsplit_core.storage import Workspace

REFRESH_S = 0.5
_DISMISSED = "dismissed jobs"
RESUMED = (
    "torchsplit_core.workflow:profile_job",
    "torchsplit_core.workflow:samples_job",
    "torchsplit_core.sweep_jobs:sweep_job",
)
"""What keeps its points as they come: the same parameters again go on where it stood."""
QUIET = ("torchsplit_core.trial_jobs:trial_job",)
_MOST_FAILURES = 3


def show(workspace: Workspace) -> None:
    """The panel; it refreshes itself, and the page once when a job ends or stores a result."""
    # A proof behind a slider is told where the slider is: a panel that comes and goes would move the page.
    quiet = {record.id for record in workspace.job_records() if record.target in QUIET}
    statuses = tuple(status for status in jobs.statuses(workspace) if status.id not in quiet)
    running = tuple(status.id for status in statuses if status.state == "running")
    if running:
        st.fragment(_running, run_every=REFRESH_S)(workspace, running, _stored(workspace))
    _failures(workspace, statuses)


def _stored(workspace: Workspace) -> tuple[Any, ...]:
    return workspace.artifacts()


def _running(workspace: Workspace, watched: tuple[str, ...], stored: tuple[Any, ...]) -> None:
    statuses = {status.id: status for status in jobs.statuses(workspace)}
    still = [statuses[name] for name in watched if name in statuses and statuses[name].state == "running"]
    if len(still) < len(watched) or _stored(workspace) != stored:
        st.rerun(scope="app")
    for status in still:
        with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"job-{status.id}"):
            text = f"**{plain(status.title)}** · {plain(status.message)} · {duration(status.seconds)}"
            st.progress(status.share, text=f"{text} · {100 * status.share:.0f}{THIN}%")
            if st.button(
                "Cancel", key=f"cancel-{status.id}", help="End this work; what it has stored so far stays."
            ):
                jobs.cancel(workspace, status.id)
                st.rerun(scope="app")


def _failures(workspace: Workspace, statuses: tuple[jobs.JobStatus, ...]) -> None:
    """The last failure of each kind of work, until it is dismissed or a later attempt replaces it."""
    dismissed = workspace.setting(_DISMISSED, [])
    seen: set[str] = set()
    shown = 0
    for status in statuses:
        newest = status.title not in seen
        seen.add(status.title)
        if status.state != "failed" or not newest or status.id in dismissed or shown == _MOST_FAILURES:
            continue
        shown += 1
        with st.container(horizontal=True, vertical_alignment="center", key=f"failed-{status.id}"):
            st.error(f"{plain(status.title)} failed. {plain(status.fault or 'No reason was given.')}")
            _offer_resume(workspace, status)
            if st.button("Dismiss", key=f"dismiss-{status.id}"):
                workspace.set_setting(_DISMISSED, [*dismissed, status.id][-200:])
                st.rerun()


def _offer_resume(workspace: Workspace, status: jobs.JobStatus) -> None:
    """For work that can go on: a button that does, with the parameters it was started with."""
    record = next(found for found in workspace.job_records() if found.id == status.id)
    if record.target not in RESUMED:
        return
    # The start of a job would leave the trust out, and a model be estimated that was to be measured.
    barred = execution.refused() and asks_for_trust(record.parameters)
    if st.button(
        "Resume",
        type="primary",
        key=f"resume-{status.id}",
        disabled=barred,
        help="It executes an uploaded file, and this server executes none."
        if barred
        else "Go on where it stood: what was measured or found is taken over, the rest is done now.",
    ):
        jobs.start(workspace, record.title, record.target, record.parameters)
        st.rerun()
