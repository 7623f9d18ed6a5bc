"""Verifies the bytes/s that routed co-locations send between GPUs, from names alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.planning.verification.claims import TOLERANCE, false_claim
from torchsplit_core.planning.verification.colocation import routed_steps
from torchsplit_core.planning.verification.models import member_rates
from torchsplit_core.values import PlanFault, PlannedGpu, PlanOutcome, PlanRequest


def sent_between_gpus(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """Σ bytes · max(0, R − Σ over GPUs of the lesser of two members' requests/s there), R the lesser demand."""
    total = 0.0
    for pair in request.colocations:
        for first, second, carried in routed_steps(request, pair) if pair.mode == "routed" else ():
            first_rates, second_rates = (member_rates(request, name, gpus) for name in (first, second))
            local_rps = sum(
                min(first_rates[gpu], second_rates[gpu]) for gpu in first_rates.keys() & second_rates.keys()
            )
            demand = min(_demand(request, name) for name in (first, second))
            total += carried * max(0.0, demand - local_rps)
    return total


def _max_bytes(request: PlanRequest) -> float:
    """Bytes/s if every request leaves its GPU."""
    return sum(
        carried * min(_demand(request, name) for name in (first, second))
        for pair in request.colocations
        if pair.mode == "routed"
        for first, second, carried in routed_steps(request, pair)
    )


def flow_faults(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in the outcome's bytes/s, their bound and gap, and in a status optimal that leaves them open."""
    claimed = outcome.objective.routed
    if claimed is None or all(pair.mode != "routed" for pair in request.colocations):
        if claimed is not None or any(pair.mode == "routed" for pair in request.colocations):
            yield false_claim(
                "says what routed co-locations send where there are none, or nothing where there are some"
            )
        return
    # The rest of a demand is a difference and has the demand's rounding error.
    slack = TOLERANCE * _max_bytes(request)
    true = sent_between_gpus(request, outcome.gpus)
    if abs(claimed.bytes_per_s - true) > slack:
        yield false_claim(f"claims to send {claimed.bytes_per_s} bytes/s between GPUs, and sends {true}")
    if claimed.bound is not None and claimed.bound > true + slack:
        yield false_claim(f"claims that no plan sends fewer than {claimed.bound} bytes/s, and sends {true}")
    gap = None
    if claimed.bound is not None:
        gap = (
            max(0.0, claimed.bytes_per_s - claimed.bound) / claimed.bytes_per_s
            if claimed.bytes_per_s
            else 0.0
        )
    if (gap is None) != (claimed.gap is None) or abs((gap or 0.0) - (claimed.gap or 0.0)) > TOLERANCE:
        yield false_claim(f"claims the gap {claimed.gap} of its bytes/s, and it is {gap}")
    penalised = request.objective.separation_weight > 0
    if (
        outcome.status == "optimal"
        and not penalised
        and (claimed.bound is None or true > claimed.bound + slack)
    ):
        yield false_claim(f"is called optimal with {true} bytes/s, and {claimed.bound} are proven")


def _demand(request: PlanRequest, name: str) -> float:
    """The demand of a model, or of the model whose stage it is."""
    models = {model.name: model for model in request.models}
    if name in models:
        return models[name].demand_rps
    owners = [model for model in request.models if name.startswith(f"{model.name}/")]
    return max(owners, key=lambda model: len(model.name)).demand_rps
