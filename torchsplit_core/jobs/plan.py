"""Jobs that plan a stored request, also over its day, explain its plan, and prove trial plans of its draft."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchsplit_core import workflow
from torchsplit_core.files import write_text
from torchsplit_core.jobs.job_kinds import DayReplayParameters, RequestParameters, WhatIfParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress
from torchsplit_core.workspace.drafts import DraftStore
from torchsplit_core.workspace.named_results import exists, plan_is_current, store_outcome
from torchsplit_core.workspace.plan_cache.cache import PlanCache

if TYPE_CHECKING:
    from torchsplit_core.workspace.store import Workspace


EXPLAIN_JOB_S, LONGEST_EXPLAIN_JOB_S = 20.0, 160.0
"""Time limit of a first explanation on a page, and the most of those that settle what the one before left open, each
with twice its time."""


RELAXATION_PLAN_S = 4.0
"""Time limit of the plan of each relaxation of an infeasible request."""


def plan_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the stored request: store a verified first plan, then the proven one, under its name.

    A stored or cached plan that answers the request stays until the search has a better one; a settled one ends the
    job without a search.
    """
    from torchsplit_core.latency_slo.incumbent import is_settled, is_simulated, update_incumbent

    name = parameters.request
    request: PlanRequest = workflow.with_engine_points(workspace.get("plan_request", name), progress)
    cache = PlanCache(workspace)
    current: PlanOutcome | None = workspace.get("plan", name) if exists(workspace, "plan", name) else None
    if current is not None and not (plan_is_current(request, current) and is_simulated(request, current)):
        current = None
    if current is None:
        cached = cache.lookup(request)
        if cached is not None and is_simulated(request, cached):
            current = cached
            store_outcome(workspace, name, request, current)
    if current is not None and is_settled(request, current):
        return _finish(request, current, name, cache, progress)

    def show(plan: PlanOutcome) -> None:
        nonlocal current
        if current is None:
            progress(
                0.3, "a first plan is shown; proving that none is better" if plan.gpus else "searching on"
            )
        current = plan
        workspace.put("plan", name, plan)

    if current is None:
        progress(0.1, "looking for a first plan")
    solved = workflow.plan(
        request,
        progress=lambda share, text: progress(0.3 + 0.6 * share, text),
        on_plan=show if current is None else None,
    )
    outcome = solved if current is None else update_incumbent(request, current, solved)
    store_outcome(workspace, name, request, outcome)
    return _finish(request, outcome, name, cache, progress)


def _finish(
    request: PlanRequest, outcome: PlanOutcome, name: str, cache: PlanCache, progress: Progress
) -> dict[str, Any]:
    """Cache the plan that a search ended with; for an infeasible request, also plan its relaxations."""
    cache.store(request, outcome)
    if outcome.status == "infeasible":
        plan_relaxations(request, outcome, cache, progress)
    return {"plan": name, "status": outcome.status}


def plan_relaxations(
    request: PlanRequest, outcome: PlanOutcome, cache: PlanCache, progress: Progress
) -> None:
    """Plan the relaxations of an infeasible request; cache each plan as it comes."""
    from torchsplit_core.latency_slo.slo_planner import has_response_limit
    from torchsplit_core.planning import plan
    from torchsplit_core.planning.infeasibility.repairs import repair_requests

    progress(0.95, "looking for ways out")
    for relaxed in repair_requests(request, outcome, cache.lookup):
        if cache.lookup(relaxed) is not None:
            continue
        limit = min(RELAXATION_PLAN_S, request.solver.time_limit_s)
        limited = replace(relaxed, solver=replace(relaxed.solver, time_limit_s=limit))
        if has_response_limit(relaxed) or any(model.llm is not None for model in relaxed.models):
            cache.store(relaxed, workflow.plan(limited))
        else:
            cache.store(relaxed, plan(limited, reasons=False))


def explain_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Explain the stored plan of the stored request; store the plan with its explanation.

    Plans of changed requests that the explanation computes are cached; a further explanation begins with them. The
    answer says whether it is `complete`, or if not whether `more` time may settle more.
    """
    from torchsplit_core.planning.explanation.explain import explain_plan

    name = parameters.request
    request: PlanRequest = workflow.with_engine_points(workspace.get("plan_request", name), progress)
    outcome: PlanOutcome = workspace.get("plan", name)
    before_s = 0.0 if outcome.explanation is None else outcome.explanation.seconds
    seconds = min(max(EXPLAIN_JOB_S, 2 * before_s), LONGEST_EXPLAIN_JOB_S)
    cache = PlanCache(workspace)
    explanation = explain_plan(
        request,
        outcome,
        time.perf_counter() + seconds,
        engines=workflow.engine_questions(request, outcome),
        progress=progress,
        on_outcome=cache.store,
        known=cache.lookup,
    )
    # A plan stored while this ran is another plan: it stays, unexplained.
    if explanation is not None and workspace.get("plan", name) == outcome:
        workspace.put("plan", name, replace(outcome, explanation=explanation))
    complete = explanation is None or explanation.complete
    out_of_time = explanation is not None and explanation.seconds > 0.9 * seconds
    return {
        "plan": name,
        "complete": complete,
        "more": not complete and out_of_time and seconds < LONGEST_EXPLAIN_JOB_S,
    }


def trial_job(workspace: Workspace, parameters: WhatIfParameters, progress: Progress) -> dict[str, Any]:
    """Plan a scenario's draft within its request's time limit. Returns the plan as a contract file.

    The plan is cached, with those of the relaxations if it is infeasible. Raises InputFault if no tab has this draft
    any more: it was edited or discarded since.
    """
    from torchsplit_core.latency_slo.incumbent import is_settled

    for draft in DraftStore(workspace, parameters.request).all():
        if request_hash(draft.request) == parameters.sha256:
            request, cache = workflow.with_engine_points(draft.request, progress), PlanCache(workspace)
            outcome = cache.lookup(request)
            if outcome is not None and outcome.status == "infeasible":
                # Infeasibility is proven: planning with more GPUs is quicker than finding the reasons.
                plan_relaxations(request, outcome, cache, progress)
            if outcome is None or not is_settled(request, outcome):
                outcome = workflow.plan(request, progress=lambda share, text: progress(0.9 * share, text))
            _finish(request, outcome, parameters.request, cache, progress)
            return {"plan": write_text(outcome)}
    raise InputFault(
        f"draft of {parameters.request}",
        "was edited or discarded since its proof was asked for",
        "Look again.",
    )


def day_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the day of the stored request and store the outcome under its name."""
    request: PlanRequest = workspace.get("plan_request", parameters.request)
    outcome = workflow.plan_day(request, progress=progress)
    workspace.put("day", parameters.request, outcome)
    return {"day": parameters.request, "windows": len(outcome.windows), "status": outcome.status}


def day_replay_job(
    workspace: Workspace, parameters: DayReplayParameters, progress: Progress
) -> dict[str, Any]:
    """Simulate the stored day of the stored request over a trace, and store the outcome under its name."""
    from torchsplit_core.day_plans.replay.sides import ReplaySettings
    from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace
    from torchsplit_core.values import ThresholdRule

    name = parameters.request
    request: PlanRequest = workspace.get("plan_request", name)
    trace = DemandTrace(parameters.first_s, parameters.step_s, dict(parameters.rates))
    settings = ReplaySettings(rule=ThresholdRule(parameters.target), seed=request.seed)
    outcome = workflow.replay_day(request, workspace.get("day", name), trace, settings, progress)
    workspace.put("day_replay", name, outcome)
    return {"day_replay": name, "sides": len(outcome.sides)}


def day_curve_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan the day of the stored request under ever looser limits of changed GPUs.

    The answer has a point for each: the limit (None: any number), GPU-hours of a day by window and with one plan, and
    the requests that the changes lose, estimated.
    """
    request: PlanRequest = workspace.get("plan_request", parameters.request)
    fleet = sum(entry.count for entry in request.gpus)
    limits = [0, *(2**power for power in range(fleet.bit_length()) if 2**power < fleet), None]
    points = workflow.day_curve(request, limits, progress=progress)
    return {
        "request_sha256": request_hash(request),
        "points": [
            {
                "most_touched": point.most_touched,
                "gpu_hours": None if point.outcome is None else point.outcome.gpu_hours.windows,
                "saved_gpu_hours": point.saved_gpu_hours,
                "lost_requests": point.lost_requests,
            }
            for point in points
        ],
    }


HELD_OUT_SHARES = (0.9, 0.95, 0.99, 0.999, 1.0)


def held_out_job(workspace: Workspace, parameters: RequestParameters, progress: Progress) -> dict[str, Any]:
    """Plan every second demand sample of the stored request for usual shares, its own, and the fleet's largest.

    The answer has a point for each: the share asked for (None: the largest), GPUs in use, and how many of the samples
    planned for and of those held out the plan holds (None: no plan).
    """
    from torchsplit_core.day_plans.least_change import used_gpus

    request: PlanRequest = workspace.get("plan_request", parameters.request)
    asked = request.objective.attainment
    shares = [*HELD_OUT_SHARES, *([] if asked is None else [asked])]
    points = workflow.held_out_curve(request, shares, progress=progress)
    return {
        "request_sha256": request_hash(request),
        "points": [
            {
                "asked": point.asked,
                "status": point.outcome.status,
                "gpus": used_gpus(point.outcome) if point.outcome.gpus else None,
                "planned": None if point.outcome.samples is None else point.outcome.samples.count,
                "planned_held": point.outcome.samples.held
                if point.outcome.gpus and point.outcome.samples
                else None,
                "held_out": point.count,
                "held": point.held,
            }
            for point in points
        ],
    }
