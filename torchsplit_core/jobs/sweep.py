"""Runs a sweep as a job of a workspace and stores it point by point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torchsplit_core import workflow
from torchsplit_core.jobs.job_kinds import SweepParameters
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.planning.sweep.points import SweepRequest, sweep_requests
from torchsplit_core.values import InputFault, PlanOutcome, PlanRequest, Progress
from torchsplit_core.workflow.sweeps import TIME_LIMIT_S, sweep
from torchsplit_core.workspace.plan_cache.cache import PlanCache

if TYPE_CHECKING:
    from torchsplit_core.planning.sweep.points import Parameter
    from torchsplit_core.workspace.store import Workspace
    from torchsplit_core.workspace.sweeps import SweepStore


def sweep_job(workspace: Workspace, parameters: SweepParameters, progress: Progress) -> dict[str, Any]:
    """Sweep the stored request: store every plan as it comes and reuse stored ones.

    A stored plan is reused if it is proven or was searched for at least as long as this sweep allows.
    """
    from torchsplit_core.planning.sweep.workers import point_time_limit_s
    from torchsplit_core.workspace.sweeps import SweepStore

    name, values = parameters.request, parameters.values
    store = SweepStore(workspace, name)
    request = _begun_request(store) if parameters.begun else workspace.get("plan_request", name)
    request = workflow.with_engine_points(request, progress)
    # SweepRequest refuses an unknown parameter.
    what = SweepRequest(cast("Parameter", parameters.parameter), parameters.target, values)
    time_limit_s = TIME_LIMIT_S if parameters.time_limit_s is None else parameters.time_limit_s
    limit_s = point_time_limit_s(request, time_limit_s, len(values))
    requests = dict(sweep_requests(request, what))
    store.begin(what, request, {value: request_hash(varied) for value, varied in requests.items()})
    stored = store.load()
    assert stored is not None
    known = {value: plan.outcome for value, plan in stored.plans.items() if plan.is_sufficient(limit_s)}
    cache = PlanCache(workspace)
    for value in set(values) - set(known):
        cached = cache.lookup(requests[value])
        if cached is not None and cached.status in ("optimal", "infeasible"):
            store.save_plan(cached, limit_s)
            known[value] = cached

    def save(value: float, outcome: PlanOutcome, searched_s: float) -> None:
        store.save_plan(outcome, searched_s)
        cache.store(requests[value], outcome)

    sweep(
        request,
        what,
        time_limit_s=time_limit_s,
        known=known,
        on_plan=save,
        progress=progress,
    )
    return {"sweep": name, "points": len(values), "taken_over": len(known)}


def _begun_request(store: SweepStore) -> PlanRequest:
    begun = store.load()
    if begun is None:
        raise InputFault("sweep", "was deleted before it ran", "Start it again.")
    return begun.request
