"""What other settings would give on the same fleet: what somebody who gave none of them should know of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchsplit_core.placement.model.memory import decodes
from torchsplit_core.placement.place import place
from torchsplit_core.values import PlacementOutcome, PlacementRequest, Progress, ignore_progress

MOST_SECONDS = 10.0
"""Of the search for each alternative: they are offered beside the answer, not asked for."""

MOST_REPLICAS = 8
"""Pipelines at once that are tried."""

MOST_SHARING = 8
"""GPUs that a layer is cut among: the GPUs of a usual node."""


@dataclass(frozen=True)
class Alternative:
    """A request with other settings, and its outcome.

    options: the settings as the command line gives them.
    """

    options: str
    request: PlacementRequest
    outcome: PlacementOutcome


def alternatives(
    request: PlacementRequest, gpus_per_node: int, *, progress: Progress = ignore_progress
) -> tuple[Alternative, ...]:
    """Several pipelines; layers cut among the GPUs of a node; in decode also the shortest time per token.

    Of a roofline request. Those without an answer in MOST_SECONDS are left out. Raises InputFault as `place` does.
    """
    ways = _ways(request, gpus_per_node)
    found = []
    for number, (options, way) in enumerate(ways):

        def told(share: float, text: str, number: int = number, options: str = options) -> None:
            progress((number + share) / len(ways), f"{options}: {text}")

        solver = replace(way.solver, time_limit_s=min(MOST_SECONDS, way.solver.time_limit_s))
        outcome = place(replace(way, solver=solver), progress=told)
        if outcome.throughput is not None:
            found.append(Alternative(options, way, outcome))
    return tuple(found)


def _ways(request: PlacementRequest, gpus_per_node: int) -> Sequence[tuple[str, PlacementRequest]]:
    pipelines = min(MOST_REPLICAS, len(request.gpus))
    ways = [(f"--replicas {pipelines}", replace(request, max_replicas=pipelines))] if pipelines > 1 else []
    # Engines cut a layer among a power of two of GPUs: heads divide by it.
    sharing = 1 << (min(gpus_per_node, MOST_SHARING).bit_length() - 1)
    if sharing == 1:
        return ways
    cut = replace(request, split="tensor", max_gpus_per_segment=sharing)
    options = f"--split tensor --max-gpus {sharing}"
    ways.append((options, cut))
    if decodes(request):
        batch = request.model.batch_size
        quick = replace(cut, model=replace(cut.model, sequences_in_flight=batch))
        ways.append((f"{options} --in-flight {batch}", quick))
    return ways
