"""Plans a stored request over its demand windows as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.jobs.job_kinds import RequestParameters
from torchsplit_core.values import PlanRequest, Progress

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def day_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the day of the stored request and store the outcome under its name."""
    request: PlanRequest = workspace.get("plan_request", parameters.request)
    outcome = workflow.plan_day(request, progress=progress)
    workspace.put("day", parameters.request, outcome)
    return {"day": parameters.request, "windows": len(outcome.windows), "status": outcome.status}
