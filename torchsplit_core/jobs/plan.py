"""Planning, explaining and trying a stored request as jobs of a workspace."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.files import write_text
from torchsplit_core.jobs.names import RequestParameters, WhatIfParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress, quoted
from torchsplit_core.workspace.drafts import DraftStore
from torchsplit_core.workspace.named import put_answer

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


EXPLAIN_JOB_S = 20.0
"""Seconds a page spends on the explanation of a plan: it shows how far it is, and can be cancelled."""


FIRST_LOOK_S = 0.25
"""Seconds after which a page gets a verified plan; its proof follows."""


def plan_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the stored request: a verified first look in seconds, then the proof, both under its name."""
    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    digest = request_hash(request)
    limit = request.solver.time_limit_s
    if any(model.max_response_ms is not None for model in request.models):
        # A first look is too short to simulate anything.
        outcome = workflow.plan(request, progress=progress)
        put_answer(workspace, name, request, outcome)
        return {"plan": name, "status": outcome.status}
    quick = replace(request, solver=replace(request.solver, time_limit_s=min(FIRST_LOOK_S, limit)))
    progress(0.1, "looking for a first plan")
    outcome = replace(workflow.plan(quick), request_sha256=digest)
    if outcome.status not in ("optimal", "infeasible") and limit > FIRST_LOOK_S:
        # A first look that leaves a model without anything would mislead more than a moment's wait.
        shown = outcome.status == "feasible" and outcome.objective.value != 0
        if shown:
            workspace.put("plan", name, outcome)
        progress(0.3, "a plan stands; proving that none is better" if shown else "looking for a fair plan")
        better = workflow.plan(request, progress=lambda share, text: progress(0.3 + 0.7 * share, text))
        if better.status != "timeout":
            outcome = better
    put_answer(workspace, name, request, outcome)
    return {"plan": name, "status": outcome.status}


def explain_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Explain the stored plan of the stored request; the plan gets the explanation under its name."""
    from torchsplit_core.planning.explanation.explain import explain_plan

    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    outcome: PlanOutcome = workspace.get("plan", name)
    deadline = time.perf_counter() + EXPLAIN_JOB_S
    found = explain_plan(request, outcome, deadline, progress=progress)
    # A plan that was made while this ran is another plan: it keeps its place, unexplained.
    if found is not None and workspace.get("plan", name) == outcome:
        workspace.put("plan", name, replace(outcome, explanation=found))
    return {"plan": name, "complete": found is not None and found.complete}


def trial_job(workspace: Workspace, parameters: WhatIfParameters, progress: Progress) -> dict[str, Any]:
    """Search for the proof of a scenario's draft, as long as its request allows; the plan as a contract file.

    Raises InputFault where the draft is not the one that was tried: it was edited or discarded since.
    """
    draft = DraftStore(workspace, parameters.request).load()
    if draft is None or request_hash(draft.request) != parameters.sha256:
        raise InputFault(
            "draft",
            f"{quoted(parameters.request)} was edited or discarded after it was tried",
            "Try it again.",
        )
    return {"plan": write_text(workflow.plan(draft.request, progress=progress))}
