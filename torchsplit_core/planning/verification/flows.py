"""What a plan says of the bytes/s that routed co-locations send between GPUs, from names alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.planning.verification.models import requests_there
from torchsplit_core.planning.verification.standing import routed_steps
from torchsplit_core.planning.verification.terms import TOLERANCE, wrong
from torchsplit_core.values import PlanFault, PlannedGpu, PlanOutcome, PlanRequest


def sent_between_gpus(request: PlanRequest, gpus: Sequence[PlannedGpu]) -> float:
    """Σ bytes · max(0, R − Σ over GPUs of the lesser of two members' requests/s there), R the lesser demand."""
    total = 0.0
    for pair in request.colocations:
        for first, second, carried in routed_steps(request, pair) if pair.mode == "routed" else ():
            here, there = (requests_there(request, name, gpus) for name in (first, second))
            kept = sum(min(here[gpu], there[gpu]) for gpu in here.keys() & there.keys())
            demand = min(_demand(request, name) for name in (first, second))
            total += carried * max(0.0, demand - kept)
    return total


def _most(request: PlanRequest) -> float:
    """Bytes/s where every request leaves its GPU."""
    return sum(
        carried * min(_demand(request, name) for name in (first, second))
        for pair in request.colocations
        if pair.mode == "routed"
        for first, second, carried in routed_steps(request, pair)
    )


def flow_faults(request: PlanRequest, outcome: PlanOutcome) -> Iterator[PlanFault]:
    """Faults in the outcome's bytes/s, their bound and gap, and in a proof that leaves them open."""
    told = outcome.objective.routed
    if told is None or all(pair.mode != "routed" for pair in request.colocations):
        if told is not None or any(pair.mode == "routed" for pair in request.colocations):
            yield wrong(
                "says what routed co-locations send where there are none, or nothing where there are some"
            )
        return
    # What is left of a demand is a difference: its rounding is that of the demand.
    slack = TOLERANCE * _most(request)
    true = sent_between_gpus(request, outcome.gpus)
    if abs(told.bytes_per_s - true) > slack:
        yield wrong(f"claims to send {told.bytes_per_s} bytes/s between GPUs, and sends {true}")
    if told.bound is not None and told.bound > true + slack:
        yield wrong(f"claims that no plan sends fewer than {told.bound} bytes/s, and sends {true}")
    gap = None
    if told.bound is not None:
        gap = max(0.0, told.bytes_per_s - told.bound) / told.bytes_per_s if told.bytes_per_s else 0.0
    if (gap is None) != (told.gap is None) or abs((gap or 0.0) - (told.gap or 0.0)) > TOLERANCE:
        yield wrong(f"claims the gap {told.gap} of its bytes/s, and it is {gap}")
    paid = request.objective.separation_weight > 0
    if outcome.status == "optimal" and not paid and (told.bound is None or true > told.bound + slack):
        yield wrong(f"is called optimal with {true} bytes/s, and {told.bound} are proven")


def _demand(request: PlanRequest, name: str) -> float:
    """The demand of a model, or of the model whose stage it is."""
    models = {model.name: model for model in request.models}
    if name in models:
        return models[name].demand_rps
    owners = [model for model in request.models if name.startswith(f"{model.name}/")]
    return max(owners, key=lambda model: len(model.name)).demand_rps
