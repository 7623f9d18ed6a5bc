"""The ways to divide a model side by side, as a job: it tells what it found and stores no placement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core.files import write_text
from torchsplit_core.values import PlacementRequest, Progress

if TYPE_CHECKING:
    from torchsplit_core.storage import Workspace


def ways_job(workspace: Workspace, parameters: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Place the stored request `request` in every way; each outcome as a contract file under its way's name.

    The time limit of the request is shared among the ways.
    """
    from torchsplit_core.placement import place
    from torchsplit_core.placement.ways import ways

    request: PlacementRequest = workspace.get("placement_request", str(parameters["request"]))
    each = ways(request)
    solver = replace(request.solver, method="exact", time_limit_s=request.solver.time_limit_s / len(each))
    found = []
    for number, (name, way) in enumerate(each):

        def told(share: float, text: str, number: int = number, name: str = name) -> None:
            progress((number + share) / len(each), f"{name}: {text}")

        found.append([name, write_text(place(replace(way, solver=solver), progress=told))])
    return {"ways": found}
