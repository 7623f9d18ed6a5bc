"""Jobs that place a stored request: its pipelines, its throughput-latency curve, and its divisions compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.files import write_text
from torchsplit_core.jobs.job_kinds import RequestParameters, RequestVersionParameters
from torchsplit_core.values import InputFault, PlacementRequest, Progress, quoted
from torchsplit_core.workspace.named_results import exists, sha256_of, store_outcome

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def place_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Place the stored request; store the outcome under its name, with the request it answers."""
    name = parameters.request
    request: PlacementRequest = workspace.get("placement_request", name)
    previous = workspace.get("placement", name) if exists(workspace, "placement", name) else None
    outcome = workflow.place(request, warm_start=previous, progress=progress)
    store_outcome(workspace, name, request, outcome)
    return {"placement": name, "status": outcome.status}


def placement_frontier_job(
    workspace: Workspace, parameters: RequestParameters, progress: Progress
) -> dict[str, Any]:
    """Compute throughput against latency of the stored request; store the curve under its name."""
    name = parameters.request
    request: PlacementRequest = workspace.get("placement_request", name)
    curve = workflow.placement_frontier(request, progress=progress)
    store_outcome(workspace, name, request, curve)
    return {"placement_frontier": name, "status": curve.status, "points": len(curve.points)}


def ways_job(
    workspace: Workspace, parameters: RequestVersionParameters, progress: Progress
) -> dict[str, Any]:
    """Place the stored request in every way. Returns each outcome as a contract file under its way's name, the
    throughput of its segments on their GPUs, and the size of the published program.

    The ways share the request's time limit. Raises InputFault if the stored request has changed since the job was
    started, for the result is stored by its hash.
    """
    name = parameters.request
    if sha256_of(workspace, "placement_request", name) != parameters.sha256:
        raise InputFault(
            "comparison",
            f"the request {quoted(name)} has changed since it was asked for",
            "Compare the ways again.",
        )
    request: PlacementRequest = workspace.get("placement_request", name)
    comparison = workflow.compare_placements(request, progress=progress)
    return {
        "ways": [[entry.label, write_text(entry.outcome)] for entry in comparison],
        "delivered": {entry.label: entry.delivered for entry in comparison},
        "literal": workflow.literal_size(request),
    }
