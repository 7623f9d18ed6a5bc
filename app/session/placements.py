"""Placements in a workspace: which is chosen, its request and outcome, and work on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from app.session.workspace import chosen, look_at, names, read
from torchsplit_core import jobs
from torchsplit_core.jobs.names import DIVISIONS, PLACE, PLACEMENT_FRONTIER, RequestParameters
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.values import PlacementFrontier, PlacementOutcome, PlacementRequest
from torchsplit_core.workspace import named
from torchsplit_core.workspace.store import Workspace

WORK = (PLACE, PLACEMENT_FRONTIER, DIVISIONS)
"""The jobs on a placement."""
PARAMETER = "placement"
"""The query parameter and the workspace setting that hold the name of the placement looked at."""


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
    if PARAMETER in st.query_params:
        st.query_params[PARAMETER] = name
    look_at(workspace, PARAMETER, name)


def current(workspace: Workspace, among: Sequence[str] | None = None) -> str | None:
    """The placement of the address, else of this session, else the one looked at last, else the newest.

    None where there is none. `among`: all there are, where the caller has asked.
    """
    names = known(workspace) if among is None else among
    return chosen(workspace, PARAMETER, names, st.query_params.get(PARAMETER))


def asked_in_vain(known: Sequence[str]) -> str | None:
    """The placement that the address names and that is none of these: no other may stand in for it unsaid."""
    asked = st.query_params.get(PARAMETER)
    return asked if asked and asked not in known else None


def kept(workspace: Workspace, name: str) -> Kept:
    """What is stored under this name of `known`."""
    request: PlacementRequest = read(workspace, "placement_request", name)
    outcome: PlacementOutcome | None = read(workspace, "placement", name)
    same = outcome is not None and named.placement_answers(workspace, name, request, outcome)
    return Kept(name, named.digest(workspace, "placement_request", name), request, outcome, same)


def put(workspace: Workspace, name: str, request: PlacementRequest) -> None:
    """Store a request and choose it. Raises InputFault for one that makes no sense."""
    validate(request)
    workspace.put("placement_request", name, request)
    choose(workspace, name)


def curve_of(workspace: Workspace, kept: Kept) -> PlacementFrontier | None:
    """The stored curve where it answers the very request, else None."""
    curve: PlacementFrontier | None = read(workspace, "placement_frontier", kept.name)
    if curve is None or not named.placement_answers(workspace, kept.name, kept.request, curve):
        return None
    return curve


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
    named.remove(workspace, named.PLACEMENT, name)
