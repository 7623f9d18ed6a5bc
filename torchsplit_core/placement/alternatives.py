"""Outcomes of other settings on the same fleet, offered to users who set none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsplit_core.placement.model.memory import is_decode
from torchsplit_core.placement.placer import place
from torchsplit_core.values import PlacementOutcome, PlacementRequest, Progress, ignore_progress

MOST_SECONDS = 10.0
"""Of the search for each alternative: they only accompany the outcome."""

MOST_REPLICAS = 8
"""Most pipelines at once that are tried."""

MOST_SHARING = 8
"""Most GPUs that share a layer: the GPUs of a usual node."""


@dataclass(frozen=True)
class Alternative:
    """A request with other settings, and its outcome. options: the settings as command-line options."""

    options: str
    request: PlacementRequest
    outcome: PlacementOutcome


def alternatives(
    request: PlacementRequest, gpus_per_node: int, *, progress: Progress = ignore_progress
) -> tuple[Alternative, ...]:
    """Several pipelines; layers cut among the GPUs of a node; in decode also the shortest time per token.

    Only of a roofline request. Leaves out those without an outcome in MOST_SECONDS. Raises InputFault as `place` does.
    """
    variants = _variant_requests(request, gpus_per_node)
    outcomes = []
    for number, (options, variant) in enumerate(variants):

        def report(share: float, text: str, number: int = number, options: str = options) -> None:
            progress((number + share) / len(variants), f"{options}: {text}")

        solver = replace(variant.solver, time_limit_s=min(MOST_SECONDS, variant.solver.time_limit_s))
        outcome = place(replace(variant, solver=solver), progress=report)
        if outcome.throughput is not None:
            outcomes.append(Alternative(options, variant, outcome))
    return tuple(outcomes)


def _variant_requests(
    request: PlacementRequest, gpus_per_node: int
) -> Sequence[tuple[str, PlacementRequest]]:
    pipelines = min(MOST_REPLICAS, len(request.gpus))
    variants = (
        [(f"--replicas {pipelines}", replace(request, max_replicas=pipelines))] if pipelines > 1 else []
    )
    # Engines cut a layer among a power of two of GPUs, because heads must divide by it.
    sharing = 1 << (min(gpus_per_node, MOST_SHARING).bit_length() - 1)
    if sharing == 1:
        return variants
    cut = replace(request, split="tensor", max_gpus_per_segment=sharing)
    options = f"--split tensor --max-gpus {sharing}"
    variants.append((options, cut))
    if is_decode(request):
        batch = request.model.batch_size
        quick = replace(cut, model=replace(cut.model, sequences_in_flight=batch))
        variants.append((f"{options} --in-flight {batch}", quick))
    return variants
