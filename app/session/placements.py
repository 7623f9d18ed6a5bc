"""Placements in a workspace: the request and the outcome of one, and work on it."""

from __future__ import annotations

from dataclasses import dataclass

from app.session.result_kind import PLACEMENT
from app.session.workspace import read
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import PLACE, PLACEMENT_FRONTIER, RequestParameters
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.values import PlacementFrontier, PlacementOutcome, PlacementRequest
from torchsplit_core.workspace import named_results
from torchsplit_core.workspace.store import Workspace


@dataclass(frozen=True)
class StoredPlacement:
    """A stored request with its outcome (None: not placed yet); `answers`: the outcome is of this very request."""

    name: str
    sha256: str
    request: PlacementRequest
    outcome: PlacementOutcome | None
    is_current: bool


def load(workspace: Workspace, name: str) -> StoredPlacement:
    """What is stored under this name of `known`."""
    request: PlacementRequest = read(workspace, "placement_request", name)
    outcome: PlacementOutcome | None = read(workspace, "placement", name)
    same = outcome is not None and named_results.placement_is_current(workspace, name, request, outcome)
    return StoredPlacement(
        name, named_results.sha256_of(workspace, "placement_request", name), request, outcome, same
    )


def put(workspace: Workspace, name: str, request: PlacementRequest) -> None:
    """Store a request and choose it. Raises InputFault for one that makes no sense."""
    validate(request)
    workspace.put("placement_request", name, request)
    PLACEMENT.choose(workspace, name)


def curve_of(workspace: Workspace, placement: StoredPlacement) -> PlacementFrontier | None:
    """The stored curve where it answers the very request, else None."""
    curve: PlacementFrontier | None = read(workspace, "placement_frontier", placement.name)
    if curve is None or not named_results.placement_is_current(
        workspace, placement.name, placement.request, curve
    ):
        return None
    return curve


def start(workspace: Workspace, name: str) -> str:
    """Place the stored request in a job; work on the same name ends first. Its job id."""
    jobs.end(workspace, PLACEMENT.job_kinds, name)
    return jobs.start(workspace, f"Place {name}", PLACE, RequestParameters(name))


def start_curve(workspace: Workspace, name: str) -> str:
    """Trace throughput against latency of the stored request in a job. Its job id."""
    return jobs.start(workspace, f"Curve of {name}", PLACEMENT_FRONTIER, RequestParameters(name))
