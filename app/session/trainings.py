"""Trainings in a workspace: which is chosen, its request and strategy, and work on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.session.workspace import chosen, look_at, names, read
from torchsplit_core import jobs
from torchsplit_core.jobs.names import (
    STRATEGY,
    STRATEGY_STUDY,
    DivisionsParameters,
    RequestParameters,
    as_stored,
)
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.workspace import named
from torchsplit_core.workspace.store import Workspace

WORK = (STRATEGY, STRATEGY_STUDY)
"""The jobs on a training."""
PARAMETER = "training"
"""The query parameter and the workspace setting that hold the name of the training looked at."""


@dataclass(frozen=True)
class Kept:
    """A stored request with its outcome (None: not searched yet); `answers`: the outcome is of this very request."""

    name: str
    sha256: str
    request: StrategyRequest
    outcome: StrategyOutcome | None
    answers: bool


def known(workspace: Workspace) -> tuple[str, ...]:
    """The names of all strategy requests, newest first."""
    return names(workspace, "strategy_request")


def choose(workspace: Workspace, name: str) -> None:
    """Make a training the one that the page shows, in this session and later."""
    if PARAMETER in st.query_params:
        st.query_params[PARAMETER] = name
    look_at(workspace, PARAMETER, name)


def current(workspace: Workspace, among: Sequence[str] | None = None) -> str | None:
    """The training of the address, else of this session, else the one looked at last, else the newest.

    None where there is none. `among`: all there are, where the caller has asked.
    """
    found = known(workspace) if among is None else among
    return chosen(workspace, PARAMETER, found, st.query_params.get(PARAMETER))


def asked_in_vain(found: Sequence[str]) -> str | None:
    """The training that the address names and that is none of these: no other may stand in for it unsaid."""
    asked = st.query_params.get(PARAMETER)
    return asked if asked and asked not in found else None


def kept(workspace: Workspace, name: str) -> Kept:
    """What is stored under this name of `known`."""
    request: StrategyRequest = read(workspace, "strategy_request", name)
    outcome: StrategyOutcome | None = read(workspace, "strategy", name)
    same = outcome is not None and named.strategy_answers(workspace, name)
    return Kept(name, named.digest(workspace, "strategy_request", name), request, outcome, same)


def put(workspace: Workspace, name: str, request: StrategyRequest) -> None:
    """Store a request and choose it."""
    workspace.put("strategy_request", name, request)
    choose(workspace, name)


def start(workspace: Workspace, name: str) -> str:
    """Search for the stored request in a job; work on the same name ends first. Its job id."""
    jobs.end(workspace, WORK, name)
    return jobs.start(workspace, f"Strategy of {name}", STRATEGY, RequestParameters(name))


def start_study(workspace: Workspace, kept: Kept) -> str:
    """Look around the stored answer in a job. Its job id."""
    title = f"Around the strategy of {kept.name}"
    return jobs.start(workspace, title, STRATEGY_STUDY, DivisionsParameters(kept.name, kept.sha256))


def studied(workspace: Workspace, kept: Kept) -> dict[str, Any] | None:
    """What the last look around this very request found; None before there was one."""
    done = _of(workspace, kept, "done")
    return dict(done[0].result) if done else None


def studying(workspace: Workspace, kept: Kept) -> bool:
    """Whether one runs."""
    return bool(_of(workspace, kept, "running"))


def _of(workspace: Workspace, kept: Kept, state: str) -> list[jobs.JobStatus]:
    asked = as_stored(STRATEGY_STUDY, DivisionsParameters(kept.name, kept.sha256))
    same = {
        record.id
        for record in workspace.job_records()
        if record.name == STRATEGY_STUDY and record.parameters == asked
    }
    return [status for status in jobs.statuses(workspace) if status.id in same and status.state == state]


def remove(workspace: Workspace, name: str) -> None:
    """Forget a training; work on it ends."""
    jobs.end(workspace, WORK, name)
    named.remove(workspace, named.TRAINING, name)
