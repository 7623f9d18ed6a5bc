"""Placements in a workspace: which is chosen, its request and outcome, and work on it."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.workspace import names, read, remember
from torchsplit_core import jobs
from torchsplit_core.job_names import DIVISIONS, PLACE, PLACEMENT_FRONTIER, RequestParameters
from torchsplit_core.placement import validate, violations
from torchsplit_core.placement.frontier import frontier_violations
from torchsplit_core.storage import Workspace
from torchsplit_core.values import PlacementFrontier, PlacementOutcome, PlacementRequest
from torchsplit_core.workflow import placement_frontier_mark, placement_mark

WORK = (PLACE, PLACEMENT_FRONTIER, DIVISIONS)
"""The jobs on a placement."""
CHOSEN = "placement"
"""The workspace setting that holds the name of the placement looked at last."""


@dataclass(frozen=True)
class Kept:
    """A stored request with its outcome (None: not placed yet); `answers`: the outcome is of this very request."""

    name: str
    sha256: str
    request: PlacementRequest
    outcome: PlacementOutcome | None
    answers: bool


def known(workspace: Workspace) -> tuple[str, ...]:
    """The names of all placement requests, newest first."""
    return names(workspace, "placement_request")


def choose(workspace: Workspace, name: str) -> None:
    """Make a placement the one that the page shows, in this session and later."""
    st.session_state[_key(workspace)] = name
    remember(workspace, CHOSEN, name)


def chosen(workspace: Workspace) -> str | None:
    """The placement of this session, else the one looked at last, else the newest; None where there is none."""
    found = known(workspace)
    for name in (st.session_state.get(_key(workspace)), workspace.setting(CHOSEN)):
        if name in found:
            return str(name)
    return found[0] if found else None


def kept(workspace: Workspace, name: str) -> Kept:
    """What is stored under this name of `known`."""
    sha256 = next(item.sha256 for item in workspace.artifacts("placement_request") if item.name == name)
    request: PlacementRequest = read(workspace, "placement_request", name)
    outcome: PlacementOutcome | None = read(workspace, "placement", name)
    return Kept(name, sha256, request, outcome, _answers(workspace, name, sha256, request, outcome))


def _answers(
    workspace: Workspace, name: str, sha256: str, request: PlacementRequest, outcome: PlacementOutcome | None
) -> bool:
    if outcome is None:
        return False
    told = workspace.setting(placement_mark(name))
    # A workspace that came as an archive has no settings: then the outcome is checked against the request.
    return bool(told == sha256) if told else not any(violations(request, outcome))


def put(workspace: Workspace, name: str, request: PlacementRequest) -> None:
    """Store a request and choose it. Raises InputFault for one that makes no sense."""
    validate(request)
    workspace.put("placement_request", name, request)
    choose(workspace, name)


def free_name(workspace: Workspace, wanted: str) -> str:
    """The name, with a number behind it where it is taken."""
    taken, number, found = set(known(workspace)), 2, wanted
    while found in taken:
        found, number = f"{wanted} {number}", number + 1
    return found


def curve_of(workspace: Workspace, kept: Kept) -> PlacementFrontier | None:
    """The stored curve where it answers the very request, else None."""
    curve: PlacementFrontier | None = read(workspace, "placement_frontier", kept.name)
    told = workspace.setting(placement_frontier_mark(kept.name))
    if curve is None or (told and told != kept.sha256):
        return None
    # A workspace that came as an archive has no settings: then the curve is checked against the request.
    return curve if told or not any(frontier_violations(kept.request, curve)) else None


def start(workspace: Workspace, name: str) -> str:
    """Place the stored request in a job; work on the same name ends first. Its job id."""
    jobs.end(workspace, WORK, name)
    return jobs.start(workspace, f"Place {name}", PLACE, RequestParameters(name))


def start_curve(workspace: Workspace, name: str) -> str:
    """Trace throughput against latency of the stored request in a job. Its job id."""
    return jobs.start(workspace, f"Curve of {name}", PLACEMENT_FRONTIER, RequestParameters(name))


def remove(workspace: Workspace, name: str) -> None:
    """Forget a placement; work on it ends."""
    jobs.end(workspace, WORK, name)
    for kind in ("placement_request", "placement", "placement_frontier"):
        workspace.remove(kind, name)


def _key(workspace: Workspace) -> str:
    return f"placement of {workspace.id}"
