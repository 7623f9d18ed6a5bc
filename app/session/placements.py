"""Curves of throughput against latency of the placements in a workspace."""

from __future__ import annotations

from app.session.result_kind import StoredResult
from app.session.workspace import read
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PLACEMENT_FRONTIER, RequestParameters
from torchsplit_core.values import PlacementFrontier, PlacementOutcome, PlacementRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace

StoredPlacement = StoredResult[PlacementRequest, PlacementOutcome]


def curve_of(workspace: Workspace, placement: StoredPlacement) -> PlacementFrontier | None:
    """The stored curve where it answers this request, else None."""
    curve: PlacementFrontier | None = read(workspace, "placement_frontier", placement.name)
    if curve is None or not named_results.is_current(workspace, placement.name, placement.request, curve):
        return None
    return curve


def start_curve(workspace: Workspace, name: str) -> str:
    """Trace throughput against latency of the stored request in a job; return the job's id."""
    return jobs.start(workspace, f"Curve of {name}", PLACEMENT_FRONTIER, RequestParameters(name))
