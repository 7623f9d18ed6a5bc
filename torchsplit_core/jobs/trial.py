"""The proof of what is tried on top of a stored request, as a job: it tells what it found and stores no plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core.files import write_text
from torchsplit_core.jobs.names import WhatIfParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanRequest, Progress

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


def trial_parameters(name: str, request: PlanRequest, tried: PlanRequest) -> WhatIfParameters:
    """What `trial_job` needs: the stored request's name and the numbers that differ from it.

    Weights, demands (requests/s) and counts of GPUs may differ, nothing else.
    """
    models = {
        after.name: (after.weight, after.demand_rps)
        for before, after in zip(request.models, tried.models, strict=True)
        if before != after
    }
    return WhatIfParameters(name, models, tuple(entry.count for entry in tried.gpus), request_hash(tried))


def tried_request(request: PlanRequest, parameters: WhatIfParameters) -> PlanRequest:
    """The stored request with the numbers that were tried.

    Raises InputFault where that is not what was tried: the stored request has changed since.
    """
    numbers = parameters.models
    tried = replace(
        request,
        models=tuple(
            replace(model, weight=numbers[model.name][0], demand_rps=numbers[model.name][1])
            if model.name in numbers
            else model
            for model in request.models
        ),
        # An entry with an id of its own is one GPU; several get numbered ids.
        gpus=tuple(
            replace(entry, count=count, id=entry.id if count == entry.count else None)
            for entry, count in zip(request.gpus, parameters.counts, strict=False)
        ),
    )
    if request_hash(tried) != parameters.sha256:
        raise InputFault(
            "what if", parameters.request, "it is tried on the request as it is stored", "Move a slider again."
        )  # fmt: skip
    return tried


def trial_job(workspace: Workspace, parameters: WhatIfParameters, progress: Progress) -> dict[str, Any]:
    """Search for the proof of what is tried, as long as the request allows; the plan as a contract file."""
    from torchsplit_core.planning import plan

    tried = tried_request(workspace.get("plan_request", parameters.request), parameters)
    return {"plan": write_text(plan(tried, progress=progress))}
