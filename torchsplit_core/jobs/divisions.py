"""The ways to divide a model side by side, as a job: it tells what it found and stores no placement."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core.files import write_text
from torchsplit_core.jobs.names import DivisionsParameters
from torchsplit_core.values import InputFault, PlacementRequest, Progress
from torchsplit_core.workspace.named import digest

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def ways_job(workspace: Workspace, parameters: DivisionsParameters, progress: Progress) -> dict[str, Any]:
    """Place the stored request in every way; each outcome as a contract file under its way's name.

    The time limit of the request is shared among the ways. Raises InputFault where the stored request is not the one
    that was asked about: the answer is kept by it.
    """
    from torchsplit_core.placement import place
    from torchsplit_core.placement.request.divisions import ways

    name = parameters.request
    if digest(workspace, "placement_request", name) != parameters.sha256:
        raise InputFault(
            "comparison", name, "the request is the one that it was asked for", "Compare the ways again."
        )
    request: PlacementRequest = workspace.get("placement_request", name)
    each = ways(request)
    solver = replace(request.solver, method="exact", time_limit_s=request.solver.time_limit_s / len(each))
    found = []
    for number, (label, way) in enumerate(each):

        def told(share: float, text: str, number: int = number, label: str = label) -> None:
            progress((number + share) / len(each), f"{label}: {text}")

        found.append([label, write_text(place(replace(way, solver=solver), progress=told))])
    return {"ways": found}
