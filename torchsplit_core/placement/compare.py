"""Three solvers side by side: one GPU a segment, counts of GPUs, particular GPUs.

A solver of counts knows how many GPUs of a type a segment has, and the mean bandwidth between types. What it promises
is then set beside what the same segments give on GPUs of these types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.placement.literal.size import literal_size
from torchsplit_core.placement.model.instance import figures
from torchsplit_core.placement.model.segments import SegmentModel, instance_of
from torchsplit_core.placement.place import place
from torchsplit_core.placement.request.divisions import division_requests
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.values import PlacementOutcome, PlacementRequest, Progress, ignore_progress

COUNTS = "counts of GPUs only"
"""The name of the solver that does not say which GPUs."""


@dataclass(frozen=True)
class Compared:
    """One solver's answer. delivered: the throughput of its segments on the GPUs that they name, with the links that
    these have: that of the outcome, but for a solver of counts; 0 where a link that it counted on is none; None where
    it has no answer."""

    label: str
    outcome: PlacementOutcome
    delivered: float | None


def compare(request: PlacementRequest, *, progress: Progress = ignore_progress) -> tuple[Compared, ...]:
    """Every way to place the request, within its time limit in all.

    Raises InputFault for a request that makes no sense.
    """
    validate(request)
    alone, *others = division_requests(request)
    ways = [alone, (COUNTS, counted(request)), *((f"particular GPUs, {label}", way) for label, way in others)]
    seconds = request.solver.time_limit_s / len(ways)
    found = []
    for number, (label, way) in enumerate(ways):

        def told(share: float, text: str, number: int = number, label: str = label) -> None:
            progress((number + share) / len(ways), f"{label}: {text}")

        solver = replace(request.solver, method="exact", time_limit_s=seconds)
        outcome = place(replace(way, solver=solver), progress=told)
        delivered = _delivered(request, outcome) if label == COUNTS else outcome.throughput
        found.append(Compared(label, outcome, delivered))
    return tuple(found)


def counted(request: PlacementRequest) -> PlacementRequest:
    """The request as a solver of counts sees it: segments of one type, links by the mean between the types."""
    types = [gpu.type for gpu in request.gpus]
    links = np.array(request.bandwidth_gib_per_s, dtype=np.float64)
    off = ~np.eye(len(types), dtype=bool)
    mean = links.copy()
    for one in dict.fromkeys(types):
        for other in dict.fromkeys(types):
            pair = np.outer([name == one for name in types], [name == other for name in types]) & off
            if pair.any():
                mean[pair] = links[pair].mean()
    rows = tuple(tuple(row) for row in mean.tolist())
    solver = replace(request.solver, method="exact")
    return replace(request, bandwidth_gib_per_s=rows, same_type_segments=True, max_replicas=1, solver=solver)


def literal_words(request: PlacementRequest) -> str:
    """How large the published program of the request is, in a sentence, without building it.

    Raises InputFault for a request that makes no sense.
    """
    validate(replace(request, solver=replace(request.solver, method="exact")))
    size = literal_size(instance_of(SegmentModel(request)))
    if size is None:
        return "The published program of this request has too many sorts of segments to count them."
    return f"The published program of this request has {size.words()}."


def _delivered(request: PlacementRequest, outcome: PlacementOutcome) -> float | None:
    """What the segments of an outcome give with the links that their GPUs have."""
    if not outcome.segments:
        return None
    index_of = {gpu.id: index for index, gpu in enumerate(request.gpus)}
    segments = tuple(
        (part.end_layer - part.start_layer + 1, tuple(sorted(index_of[gpu] for gpu in part.gpu_ids)))
        for part in outcome.segments
    )
    real = figures(instance_of(SegmentModel(replace(request, same_type_segments=True))), segments)
    return real.value if real is not None else 0.0


def rows_of(found: Sequence[Compared]) -> Iterator[tuple[str, ...]]:
    """A line a solver for people: its name, what it promises, what its GPUs give, the proof, how many GPUs."""
    for one in found:
        every = [part for other in one.outcome.replicas for part in other.segments] or one.outcome.segments
        gpus = sum(part.num_gpus for part in every)
        promised, given = (
            "n/a" if value is None else f"{value:.6g}" for value in (one.outcome.throughput, one.delivered)
        )
        yield one.label, promised, given, one.outcome.status, str(gpus or "n/a")
