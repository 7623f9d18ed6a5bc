"""The last part of the recheck: the objective's value, bound, gap and status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.verification.flows import sent_between_gpus
from torchsplit_core.planning.verification.standing import standing, torn_bytes
from torchsplit_core.planning.verification.terms import TOLERANCE, same, wrong
from torchsplit_core.values import PlanFault, PlannedGpu, PlanOutcome, PlanRequest


def check_objective(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in what the outcome says of its objective."""
    objective, kind = outcome.objective, request.objective.kind
    if objective.kind != kind:
        yield wrong(f"has the objective {objective.kind}, and the request asks for {kind}")
        return
    ranked = sorted(model.normalised for model in outcome.models)
    if len(ranked) != len(objective.sorted_normalised) or not all(
        same(first, second) for first, second in zip(ranked, objective.sorted_normalised, strict=True)
    ):
        yield wrong("sorted_normalised differs from what the models have")
        return
    paid = _penalty(request, outcome.gpus)
    values = _values(request, outcome, ranked, paid)
    several = kind == "leximin" and len(values) > len(ranked)
    if len(objective.levels) != (len(values) if several else 0) or not all(
        _close(one, other, paid) for one, other in zip(objective.levels, values, strict=False)
    ):
        yield wrong("levels differ from what the models have, tier by tier")
        return
    # With tiers the last levels are those of all models.
    true = values[-len(ranked)] if several else values[0]
    if objective.value is None or not _close(objective.value, true, paid):
        yield wrong(f"claims the objective {objective.value}, and it is {true}")
        return
    levels = len(values) if kind == "leximin" else 1
    if not 0 <= objective.proven_levels <= levels:
        yield wrong(f"claims {objective.proven_levels} proven levels, and there are 0 to {levels}")
        return
    if outcome.status == "optimal" and objective.proven_levels < levels:
        yield wrong(f"is called optimal with {objective.proven_levels} of {levels} levels proven")
    if objective.bound is None:
        if objective.gap is not None or objective.proven_levels == levels:
            yield wrong("claims a gap or a proof without a bound")
        return
    # The first level that is not proven is the one the bound speaks of; the first where all are.
    reached = objective.value
    if objective.proven_levels < levels:
        reached = values[objective.proven_levels]
    bound = objective.bound
    slack = TOLERANCE * max(abs(bound), abs(reached), abs(paid))
    if (reached < bound - slack) if kind == "min_gpus" else (reached > bound + slack):
        yield wrong(f"has the value {reached}, beyond its bound {bound}")
    difference, base = (reached - bound, reached) if kind == "min_gpus" else (bound - reached, bound)
    gap = difference / abs(base) if base else 0.0
    if objective.gap is None or abs(objective.gap - max(0.0, gap)) > TOLERANCE:
        yield wrong(f"claims the gap {objective.gap}, and it is {gap}")


def _penalty(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """γ · GiB beyond the slices + separation_weight · (bytes of soft co-locations torn apart, GPU by GPU, + bytes/s of
    routed ones)."""
    gamma, weight = request.objective.memory_violation_penalty, request.objective.separation_weight
    total = weight * sent_between_gpus(request, gpus) if weight > 0 else 0.0
    for gpu in gpus:
        for item in gpu.slices:
            size = gpu_type(gpu.type).profile(item.profile).memory_gib
            need = sum(tenant.memory_gib or 0.0 for tenant in item.tenants)
            if gamma and size is not None:
                total += gamma * max(0.0, need - size)
        if weight > 0:
            for pair in request.colocations:
                if pair.mode == "soft" and 0 < len(standing(request, pair, gpu)) < len(pair.models):
                    total += weight * torn_bytes(request, pair)
    return total


def _values(request: PlanRequest, outcome: PlanOutcome, ranked: list[float], paid: float) -> list[float]:
    """What the objective has at each of its levels (max_min: the first of these), penalties paid."""
    kind = request.objective.kind
    if kind == "min_gpus":
        costs = {gpu.id: gpu.cost for gpu in list_gpus(request.gpus)}
        return [sum(costs[gpu.id] for gpu in outcome.gpus if gpu.used) + paid]
    if kind == "weighted_sum":
        total = sum(
            spec.weight
            * (min(got.throughput_rps, spec.demand_rps) if spec.cap_at_demand else got.throughput_rps)
            for spec, got in zip(request.models, outcome.models, strict=True)
        )
        return [total - paid]
    found: list[float] = []
    tiers = sorted({spec.tier for spec in request.models}, reverse=True)
    for tier in tiers if len(tiers) > 1 else ():
        pairs = zip(request.models, outcome.models, strict=True)
        found += sorted(min(got.normalised - paid, 1.0) for spec, got in pairs if spec.tier == tier)
    return [*found, *(value - paid for value in ranked)]


def _close(one: float, other: float, paid: float) -> bool:
    return abs(one - other) <= TOLERANCE * max(abs(other), abs(paid), 1e-300)
