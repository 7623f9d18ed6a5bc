"""Studies around a stored strategy."""

from __future__ import annotations

from typing import Any

from app.session.result_kind import StoredResult
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import STRATEGY_STUDY, RequestVersionParameters, to_stored
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.workspace.store import Workspace

StoredTraining = StoredResult[StrategyRequest, StrategyOutcome]


def start_study(workspace: Workspace, training: StoredTraining) -> str:
    """Study the stored strategy's neighbours in a job; return the job's id."""
    title = f"Around the strategy of {training.name}"
    return jobs.start(
        workspace, title, STRATEGY_STUDY, RequestVersionParameters(training.name, training.sha256)
    )


def study_result(workspace: Workspace, training: StoredTraining) -> tuple[dict[str, Any] | None, bool]:
    """The result of the last study of this request (None before one), and whether one runs."""
    parameters = to_stored(STRATEGY_STUDY, RequestVersionParameters(training.name, training.sha256))
    study_ids = {
        record.id
        for record in workspace.job_records()
        if record.name == STRATEGY_STUDY and record.parameters == parameters
    }
    states = [status for status in jobs.statuses(workspace) if status.id in study_ids] if study_ids else []
    done = next((dict(status.result) for status in states if status.state == "done"), None)
    return done, any(status.state == "running" for status in states)
