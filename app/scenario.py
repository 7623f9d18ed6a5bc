"""The current scenario: a plan request and its plan, kept under one name in the workspace."""

from __future__ import annotations

import contextlib

from app.charts.colours import model_colours
from app.workspace import names, read
from torchsplit_core import jobs
from torchsplit_core.planning.build_request import model_name
from torchsplit_core.planning.request_hash import request_hash
from torchsplit_core.storage import Workspace
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Profile

PLAN_JOB = "torchsplit_core.workflow:plan_job"
SAMPLES_JOB = "torchsplit_core.workflow:samples_job"
EXPLAIN_JOB = "torchsplit_core.workflow:explain_job"


def name(workspace: Workspace) -> str | None:
    """The chosen scenario, or the newest one; None where the workspace has no plan request and no plan."""
    known = (*names(workspace, "plan_request"), *names(workspace, "plan"))
    chosen = workspace.setting("scenario")
    if chosen in known:
        return str(chosen)
    return known[0] if known else None


def choose(workspace: Workspace, scenario: str) -> None:
    """Make a scenario the current one."""
    workspace.set_setting("scenario", scenario)


def request(workspace: Workspace) -> PlanRequest | None:
    """The current scenario's plan request."""
    scenario = name(workspace)
    return read(workspace, "plan_request", scenario) if scenario else None


def plan(workspace: Workspace) -> PlanOutcome | None:
    """The current scenario's plan, None where it has not been planned yet."""
    scenario = name(workspace)
    return read(workspace, "plan", scenario) if scenario else None


def colours(workspace: Workspace) -> dict[str, str]:
    """One colour a model name, the same on every page: the request's models first, then the others profiled here."""
    asked, outcome = request(workspace), plan(workspace)
    known = [model.name for model in asked.models] if asked else []
    known += [model.name for model in outcome.models] if outcome else []
    known += sorted(
        short_name(source) for source in (*names(workspace, "profile"), *names(workspace, "graph"))
    )
    return model_colours(known)


def short_name(source: str) -> str:
    """The model name that a request gives to this source."""
    return model_name(Profile(source, ""))


def answers(outcome: PlanOutcome, asked: PlanRequest) -> bool:
    """Whether the plan is the answer to this request, not to an earlier state of it."""
    return outcome.request_sha256 == request_hash(asked)


def running(workspace: Workspace, *targets: str) -> tuple[jobs.JobStatus, ...]:
    """The workspace's jobs of these targets (of all where none is given) that still run, newest first."""
    wanted = {record.id for record in workspace.job_records() if not targets or record.target in targets}
    return tuple(
        status for status in jobs.statuses(workspace) if status.state == "running" and status.id in wanted
    )


def start_plan(workspace: Workspace, scenario: str) -> str:
    """Plan the stored request in a job of its own; a search for the same scenario ends first. Its job id."""
    same = {
        record.id
        for record in workspace.job_records()
        if record.target == PLAN_JOB and record.parameters.get("request") == scenario
    }
    for status in running(workspace, PLAN_JOB):
        if status.id in same:
            with contextlib.suppress(InputFault):
                jobs.cancel(workspace, status.id)
    choose(workspace, scenario)
    return jobs.start(workspace, f"Plan {scenario}", PLAN_JOB, {"request": scenario})


def start_explain(workspace: Workspace, scenario: str) -> str:
    """Explain the stored plan in a job of its own. Its job id."""
    return jobs.start(workspace, f"Explain {scenario}", EXPLAIN_JOB, {"request": scenario})
