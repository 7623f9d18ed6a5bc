"""Placing a stored request as jobs of a workspace: the pipelines, the curve, the divisions side by side."""

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
    """Place the stored request; the outcome stands under its name, with the request it answers."""
    name = parameters.request
    request: PlacementRequest = workspace.get("placement_request", name)
    previous = workspace.get("placement", name) if exists(workspace, "placement", name) else None
    outcome = workflow.place(request, warm_start=previous, progress=progress)
    store_outcome(workspace, name, request, outcome)
    return {"placement": name, "status": outcome.status}


def placement_frontier_job(
    workspace: Workspace, parameters: RequestParameters, progress: Progress
) -> dict[str, Any]:
    """Throughput against latency of the stored request; the curve stands under its name."""
    name = parameters.request
    request: PlacementRequest = workspace.get("placement_request", name)
    curve = workflow.placement_frontier(request, progress=progress)
    store_outcome(workspace, name, request, curve)
    return {"placement_frontier": name, "status": curve.status, "points": len(curve.points)}


def ways_job(
    workspace: Workspace, parameters: RequestVersionParameters, progress: Progress
) -> dict[str, Any]:
    """Place the stored request in every way; each outcome as a contract file under its way's name, and what its
    segments give on their GPUs; how large the published program would be.

    The time limit of the request is shared among the ways. Raises InputFault where the stored request is not the one
    that was asked about: the answer is kept by it.
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
