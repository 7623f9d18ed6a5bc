"""The proof of a draft: a job searches for it once the edits rest, and the draft takes its plan."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

import streamlit as st

from torchsplit_core import jobs
from torchsplit_core.files import read_text
from torchsplit_core.jobs.job_kinds import WHAT_IF, WhatIfParameters
from torchsplit_core.pictures.numbers import duration, escape_markdown
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import PlanOutcome, PlanRequest
from torchsplit_core.workspace.store import Workspace

REST_S = 1.0
"""Seconds without an edit until the search begins, and between two looks at its job."""


@dataclass(frozen=True, slots=True)
class ProofSearch:
    """The search for the proof of one request: its job once started, and whether and how it has ended."""

    sha256: str
    since: float
    job: str | None = None
    ended: bool = False
    fault: str = ""


def poll(workspace: Workspace, name: str, request: PlanRequest) -> PlanOutcome | None:
    """Start the search or show its state; its plan, once, if it has one.

    To be called every `REST_S` while the plan of `request` is not proven.
    """
    sha256 = request_hash(request)
    search = _search(workspace, name)
    if search is None or search.sha256 != sha256:
        stop(workspace, name)
        search = ProofSearch(sha256, time.monotonic())
    elif search.job is None and not search.ended and time.monotonic() - search.since >= REST_S:
        # By then the page has stored the draft, which the job reads.
        parameters = WhatIfParameters(name, sha256)
        search = replace(search, job=jobs.start(workspace, f"Prove the draft of {name}", WHAT_IF, parameters))
    outcome = None
    if search.job is not None and not search.ended:
        status = jobs.status(workspace, search.job)
        st.caption(f"Looking for the proof in the background · {duration(status.seconds)}")
        if status.state == "done":
            outcome = read_text(status.result["plan"], origin="the proof")[1]
            search = replace(search, ended=True)
        elif status.state != "running":
            search = replace(search, ended=True, fault=status.fault or "it was stopped")
    elif search.ended:
        text = escape_markdown(search.fault or "this is the best found in its time.")
        st.caption(f"The search for the proof ended: {text}")
    else:
        st.caption("The proof starts once you stop editing.")
    st.session_state[_key(workspace, name)] = search
    return outcome


def is_running(workspace: Workspace, name: str, request: PlanRequest) -> bool:
    """Whether the search for this request runs, or will begin once the edits rest."""
    search = _search(workspace, name)
    return search is None or not search.ended or search.sha256 != request_hash(request)


def stop(workspace: Workspace, name: str) -> None:
    """End the search."""
    search = _search(workspace, name)
    st.session_state.pop(_key(workspace, name), None)
    if search is not None and search.job is not None and not search.ended:
        # Ending a child may take seconds, and a slider does not wait for that.
        threading.Thread(target=jobs.cancel, args=(workspace, search.job), daemon=True).start()


def _search(workspace: Workspace, name: str) -> ProofSearch | None:
    search = st.session_state.get(_key(workspace, name))
    return search if isinstance(search, ProofSearch) else None


def _key(workspace: Workspace, name: str) -> str:
    return f"what if proof {workspace.id} {name}"
