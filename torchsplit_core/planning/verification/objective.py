"""Last part of the verification: the objective's value, bound, gap and status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.hardware import gpu_type
from torchsplit_core.planning.request.fleet import list_gpus
from torchsplit_core.planning.verification.claims import TOLERANCE, false_claim, same
from torchsplit_core.planning.verification.colocation import members_on_gpu, separation_weight_bytes
from torchsplit_core.planning.verification.flows import sent_between_gpus
from torchsplit_core.planning.verification.samples import samples_faults, share_held
from torchsplit_core.values import PlanFault, PlannedGpu, PlanOutcome, PlanRequest


def check_objective(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in the outcome's objective."""
    objective, kind = outcome.objective, request.objective.kind
    if objective.kind != kind:
        yield false_claim(f"has the objective {objective.kind}, and the request asks for {kind}")
        return
    ranked = sorted(model.normalised for model in outcome.models)
    if len(ranked) != len(objective.sorted_normalised) or not all(
        same(first, second) for first, second in zip(ranked, objective.sorted_normalised, strict=True)
    ):
        yield false_claim("sorted_normalised differs from what the models have")
        return
    penalty = _penalty(request, outcome.gpus)
    values = _level_values(request, outcome, ranked, penalty)
    tiered = kind == "leximin" and len(values) > len(ranked)
    if len(objective.levels) != (len(values) if tiered else 0) or not all(
        _close(claimed, value, penalty) for claimed, value in zip(objective.levels, values, strict=False)
    ):
        yield false_claim("levels differ from what the models have, tier by tier")
        return
    # With tiers the last levels are those of all models.
    true = values[-len(ranked)] if tiered else values[0]
    if objective.value is None or not _close(objective.value, true, penalty):
        yield false_claim(f"claims the objective {objective.value}, and it is {true}")
        return
    levels = len(values) if kind == "leximin" else 1
    if not 0 <= objective.proven_levels <= levels:
        yield false_claim(f"claims {objective.proven_levels} proven levels, and there are 0 to {levels}")
        return
    if outcome.status == "optimal" and objective.proven_levels < levels:
        yield false_claim(f"is called optimal with {objective.proven_levels} of {levels} levels proven")
    if objective.bound is None:
        if objective.gap is not None or objective.proven_levels == levels:
            yield false_claim("claims a gap or a proof without a bound")
        return
    # `bound` is of the first level that is not proven, or of the first level if all are proven.
    reached = objective.value
    if objective.proven_levels < levels:
        reached = values[objective.proven_levels]
    bound = objective.bound
    slack = TOLERANCE * max(abs(bound), abs(reached), abs(penalty))
    if (reached < bound - slack) if kind == "min_gpus" else (reached > bound + slack):
        yield false_claim(f"has the value {reached}, beyond its bound {bound}")
    difference, base = (reached - bound, reached) if kind == "min_gpus" else (bound - reached, bound)
    gap = difference / abs(base) if base else 0.0
    if objective.gap is None or abs(objective.gap - max(0.0, gap)) > TOLERANCE:
        yield false_claim(f"claims the gap {objective.gap}, and it is {gap}")


def check_samples_held(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in the samples that the outcome says are held."""
    objective = request.objective
    read = objective.attainment is not None or objective.kind == "attainment"
    return samples_faults(request, outcome, read=read)


def _penalty(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """γ · GiB beyond the slices + separation_weight · (separated soft bytes, GPU by GPU, + routed bytes/s)."""
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
                if pair.mode == "soft" and 0 < len(members_on_gpu(request, pair, gpu)) < len(pair.models):
                    total += weight * separation_weight_bytes(request, pair)
    return total


def _level_values(
    request: PlanRequest, outcome: PlanOutcome, ranked: list[float], penalty: float
) -> list[float]:
    """The objective's value at each of its levels (max_min: the first), minus penalties."""
    kind = request.objective.kind
    if kind == "min_gpus":
        costs = {gpu.id: gpu.cost for gpu in list_gpus(request.gpus)}
        return [sum(costs[gpu.id] for gpu in outcome.gpus if gpu.used) + penalty]
    if kind == "attainment":
        return [share_held(request, outcome.gpus)]
    if kind == "weighted_sum":
        total = sum(
            spec.weight
            * (min(planned.throughput_rps, spec.demand_rps) if spec.cap_at_demand else planned.throughput_rps)
            for spec, planned in zip(request.models, outcome.models, strict=True)
        )
        return [total - penalty]
    tier_values: list[float] = []
    tiers = sorted({spec.tier for spec in request.models}, reverse=True)
    for tier in tiers if len(tiers) > 1 else ():
        pairs = zip(request.models, outcome.models, strict=True)
        tier_values += sorted(
            min(planned.normalised - penalty, 1.0) for spec, planned in pairs if spec.tier == tier
        )
    return [*tier_values, *(value - penalty for value in ranked)]


def _close(first: float, second: float, penalty: float) -> bool:
    return abs(first - second) <= TOLERANCE * max(abs(second), abs(penalty), 1e-300)
