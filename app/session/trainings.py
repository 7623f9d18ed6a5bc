"""Trainings in a workspace: the request and the strategy of one, and work on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.session.result_kind import TRAINING
from app.session.workspace import read
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import (
    STRATEGY,
    STRATEGY_STUDY,
    RequestParameters,
    RequestVersionParameters,
    to_stored,
)
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True)
class StoredTraining:
    """A stored request with its outcome (None: not searched yet); `answers`: the outcome is of this very request."""

    name: str
    sha256: str
    request: StrategyRequest
    outcome: StrategyOutcome | None
    is_current: bool


def load(workspace: Workspace, name: str) -> StoredTraining:
    """What is stored under this name of `known`."""
    request: StrategyRequest = read(workspace, "strategy_request", name)
    outcome: StrategyOutcome | None = read(workspace, "strategy", name)
    same = outcome is not None and named_results.strategy_is_current(workspace, name)
    return StoredTraining(
        name, named_results.sha256_of(workspace, "strategy_request", name), request, outcome, same
    )


def put(workspace: Workspace, name: str, request: StrategyRequest) -> None:
    """Store a request and choose it."""
    workspace.put("strategy_request", name, request)
    TRAINING.choose(workspace, name)


def start(workspace: Workspace, name: str) -> str:
    """Search for the stored request in a job; work on the same name ends first. Its job id."""
    jobs.end(workspace, TRAINING.job_kinds, name)
    return jobs.start(workspace, f"Strategy of {name}", STRATEGY, RequestParameters(name))


def start_study(workspace: Workspace, training: StoredTraining) -> str:
    """Look around the stored answer in a job. Its job id."""
    title = f"Around the strategy of {training.name}"
    return jobs.start(
        workspace, title, STRATEGY_STUDY, RequestVersionParameters(training.name, training.sha256)
    )


def study_result(workspace: Workspace, training: StoredTraining) -> tuple[dict[str, Any] | None, bool]:
    """What the last look around this very request found (None before there was one), and whether one runs."""
    parameters = to_stored(STRATEGY_STUDY, RequestVersionParameters(training.name, training.sha256))
    study_ids = {
        record.id
        for record in workspace.job_records()
        if record.name == STRATEGY_STUDY and record.parameters == parameters
    }
    states = [status for status in jobs.statuses(workspace) if status.id in study_ids] if study_ids else []
    done = next((dict(status.result) for status in states if status.state == "done"), None)
    return done, any(status.state == "running" for status in states)
