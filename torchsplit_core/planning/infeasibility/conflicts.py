"""Why a request is infeasible: minimal sets of demands in conflict.

Deletion filter: drop one demand after another, and keep it dropped while the rest stays infeasible. The rest is
infeasible, but feasible without any one of its demands, because fewer demands never make a request harder. Every step
is an exact test; if one runs out of time, no set is reported rather than one that might not be minimal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from torchsplit_core.planning.infeasibility.feasibility_check import is_feasible
from torchsplit_core.planning.request.objective import requires_resilience
from torchsplit_core.values import Conflict, Demand, PlanModel, PlanRequest

MAX_CONFLICTS = 5
"""Conflicts to report; each shares no demand with those before it."""


def list_demands(request: PlanRequest) -> tuple[Demand, ...]:
    """Every demand that can be in a conflict: co-locations first, then latencies, then minima.

    Deletion keeps late demands, so conflicts consist of throughputs where possible.
    """
    pairs = [Demand("colocation", models=item.models) for item in request.colocations if item.mode == "hard"]
    latencies = [Demand("max_latency_ms", m.name) for m in request.models if m.max_latency_ms is not None]
    minima = [Demand("min_throughput_rps", m.name) for m in request.models if m.min_throughput_rps]
    return (*dict.fromkeys(pairs), *latencies, *minima)


def with_demands(request: PlanRequest, demands: Sequence[Demand]) -> PlanRequest:
    """The request with these demands only. Drops soft co-locations too, which forbid nothing."""
    demand_set = set(demands)
    return replace(
        request,
        models=tuple(
            replace(
                model,
                min_throughput_rps=model.min_throughput_rps
                if Demand("min_throughput_rps", model.name) in demand_set
                else None,
                max_latency_ms=model.max_latency_ms
                if Demand("max_latency_ms", model.name) in demand_set
                else None,
            )
            for model in request.models
        ),
        colocations=tuple(
            item
            for item in request.colocations
            if item.mode == "hard" and Demand("colocation", models=item.models) in demand_set
        ),
    )


def find_conflicts(request: PlanRequest, deadline: float) -> tuple[Conflict, ...]:
    """Minimal conflicts of an infeasible request; none if time does not suffice to prove one."""
    minimal_sets: list[Conflict] = []
    left = list_demands(request)
    while left and len(minimal_sets) < MAX_CONFLICTS:
        core = _minimal_conflict(request, left, deadline)
        if core is None:
            break
        minimal_sets.append(Conflict(core, _message(request, core)))
        left = tuple(demand for demand in left if demand not in core)
        if is_feasible(with_demands(request, left), deadline) is not False:
            break
    return tuple(minimal_sets)


def _minimal_conflict(
    request: PlanRequest, demands: Sequence[Demand], deadline: float
) -> tuple[Demand, ...] | None:
    """A minimal infeasible subset of infeasible `demands`; None if time ran out."""
    core = list(demands)
    # Whole models at a time first: most demands are in no conflict.
    for name in [model.name for model in request.models]:
        fewer = [demand for demand in core if demand.model != name]
        if len(fewer) in (0, len(core)) or time.perf_counter() > deadline:
            continue
        if is_feasible(with_demands(request, fewer), deadline) is False:
            core = fewer
    for demand in list(core):
        fewer = [other for other in core if other != demand]
        feasible = is_feasible(with_demands(request, fewer), deadline)
        if feasible is None:
            return None
        if not feasible:
            core = fewer
    return tuple(core)


def _message(request: PlanRequest, core: Sequence[Demand]) -> str:
    models = {model.name: model for model in request.models}
    wanted: dict[str, list[str]] = {}
    for demand in core:
        if demand.model is not None:
            wanted.setdefault(demand.model, []).append(demand.demand)
    parts = [_describe_demand(models[name], kinds) for name, kinds in wanted.items()]
    pairs = [" and ".join(demand.models) for demand in core if demand.models is not None]
    text = "; ".join(parts)
    if pairs:
        text += f"; with {', '.join(pairs)} on the same GPUs"
    intro = "This fleet cannot give" if len(core) == 1 else "This fleet cannot give at once"
    if requires_resilience(request) and wanted:
        if sum(entry.count for entry in request.gpus) == 1:
            return f"No plan survives the loss of the only GPU: {text}. Add a GPU, or plan without a spare."
        intro += " with any one GPU lost"
    which = "it" if len(core) == 1 else "any one of these"
    return f"{intro}: {text}. Without {which}, the rest can be met."


def _describe_demand(model: PlanModel, kinds: Sequence[str]) -> str:
    text = f"{model.name}"
    if "min_throughput_rps" in kinds:
        text += f" at least {model.min_throughput_rps:g} requests/s"
    if "max_latency_ms" in kinds:
        text += f" within {model.max_latency_ms:g} ms"
    return text
