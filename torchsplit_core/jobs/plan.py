"""Planning, explaining and trying a stored request as jobs of a workspace."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.files import write_text
from torchsplit_core.jobs.names import RequestParameters, WhatIfParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress
from torchsplit_core.workspace.drafts import DraftStore
from torchsplit_core.workspace.named import exists, plan_answers, put_answer

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


EXPLAIN_JOB_S = 20.0
"""Seconds a page spends on the explanation of a plan: it shows how far it is, and can be cancelled."""


FIRST_LOOK_S = 0.25
"""Seconds after which a page gets a verified plan; its proof follows."""


def plan_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the stored request: a verified first look in seconds, then the proof, both under its name.

    A stored plan that answers the request stays until the search has a better one; one that leaves nothing open stays.
    """
    from torchsplit_core.responding.standing import improved, is_settled, is_simulated

    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    limit = request.solver.time_limit_s
    standing: PlanOutcome | None = workspace.get("plan", name) if exists(workspace, "plan", name) else None
    if standing is not None and not (plan_answers(request, standing) and is_simulated(request, standing)):
        standing = None
    if standing is not None and is_settled(request, standing):
        return {"plan": name, "status": standing.status}
    # A first look is too short to simulate anything.
    if standing is None and all(model.max_response_ms is None for model in request.models):
        quick = replace(request, solver=replace(request.solver, time_limit_s=min(FIRST_LOOK_S, limit)))
        progress(0.1, "looking for a first plan")
        first = replace(workflow.plan(quick), request_sha256=request_hash(request))
        # A first look that leaves a model without anything would mislead more than a moment's wait.
        shown = first.status == "feasible" and first.objective.value != 0
        if is_settled(request, first) or limit <= FIRST_LOOK_S:
            put_answer(workspace, name, request, first)
            return {"plan": name, "status": first.status}
        if shown or first.status == "infeasible":
            workspace.put("plan", name, first)
        standing = first
        progress(0.3, "a first plan is shown; proving that none is better" if shown else "searching on")
    found = workflow.plan(request, progress=lambda share, text: progress(0.3 + 0.7 * share, text))
    outcome = found if standing is None else improved(request, standing, found)
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

    Raises InputFault where no tab has the draft that was tried: it was edited or discarded since.
    """
    for draft in DraftStore(workspace, parameters.request).all():
        if request_hash(draft.request) == parameters.sha256:
            return {"plan": write_text(workflow.plan(draft.request, progress=progress))}
    raise InputFault(
        f"draft of {parameters.request}",
        "was edited or discarded since its proof was asked for",
        "Look again.",
    )
