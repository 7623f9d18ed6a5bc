"""Three solvers compared: one GPU a segment, counts of GPUs, particular GPUs.

A solver of counts knows how many GPUs of a type a segment has, and the mean bandwidth between types. Its predicted
throughput is compared with that of the same segments on particular GPUs of these types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchsplit_core.placement.literal.size import literal_size
from torchsplit_core.placement.model.instance import evaluate_pipeline
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.placer import place
from torchsplit_core.placement.request.divisions import division_requests
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.values import PlacementOutcome, PlacementRequest, Progress, ignore_progress

COUNTS = "counts of GPUs only"
"""The name of the solver that does not choose particular GPUs."""


@dataclass(frozen=True)
class ComparedMethod:
    """One solver's outcome.

    delivered: the throughput of its segments on their GPUs with the actual links. Equal to the outcome's, but for a
    solver of counts; 0 if a needed link is missing, None without an outcome.
    """

    label: str
    outcome: PlacementOutcome
    delivered: float | None


def compare(request: PlacementRequest, *, progress: Progress = ignore_progress) -> tuple[ComparedMethod, ...]:
    """Place the request by every solver, within its time limit in all.

    Raises InputFault for an invalid request.
    """
    validate(request)
    alone, *others = division_requests(request)
    methods = [
        alone,
        (COUNTS, as_counts_request(request)),
        *((f"particular GPUs, {label}", method) for label, method in others),
    ]
    seconds = request.solver.time_limit_s / len(methods)
    compared = []
    for number, (label, method) in enumerate(methods):

        def report(share: float, text: str, number: int = number, label: str = label) -> None:
            progress((number + share) / len(methods), f"{label}: {text}")

        solver = replace(request.solver, method="exact", time_limit_s=seconds)
        outcome = place(replace(method, solver=solver), progress=report)
        delivered = _delivered(request, outcome) if label == COUNTS else outcome.throughput
        compared.append(ComparedMethod(label, outcome, delivered))
    return tuple(compared)


def as_counts_request(request: PlacementRequest) -> PlacementRequest:
    """The request as a solver of counts sees it: segments of one type, mean links between types."""
    types = [gpu.type for gpu in request.gpus]
    links = np.array(request.bandwidth_gib_per_s, dtype=np.float64)
    off = ~np.eye(len(types), dtype=bool)
    mean = links.copy()
    for type_name in dict.fromkeys(types):
        for other in dict.fromkeys(types):
            pair = np.outer([name == type_name for name in types], [name == other for name in types]) & off
            if pair.any():
                mean[pair] = links[pair].mean()
    rows = tuple(tuple(row) for row in mean.tolist())
    solver = replace(request.solver, method="exact")
    return replace(request, bandwidth_gib_per_s=rows, same_type_segments=True, max_replicas=1, solver=solver)


def describe_literal_size(request: PlacementRequest) -> str:
    """The size of the request's published program in a sentence, computed without building it.

    Raises InputFault for an invalid request.
    """
    validate(replace(request, solver=replace(request.solver, method="exact")))
    size = literal_size(build_instance(SegmentModel(request)))
    if size is None:
        return "The published program of this request has too many sorts of segments to count them."
    return f"The published program of this request has {size.describe()}."


def _delivered(request: PlacementRequest, outcome: PlacementOutcome) -> float | None:
    """The throughput of an outcome's segments with the links of their GPUs."""
    if not outcome.segments:
        return None
    index_of = {gpu.id: index for index, gpu in enumerate(request.gpus)}
    segments = tuple(
        (part.end_layer - part.start_layer + 1, tuple(sorted(index_of[gpu] for gpu in part.gpu_ids)))
        for part in outcome.segments
    )
    real = evaluate_pipeline(
        build_instance(SegmentModel(replace(request, same_type_segments=True))), segments
    )
    return real.value if real is not None else 0.0


def comparison_rows(compared: Sequence[ComparedMethod]) -> Iterator[tuple[str, ...]]:
    """A row a solver: its name, predicted and delivered throughput, proof, number of GPUs."""
    for method in compared:
        every = [
            part for other in method.outcome.replicas for part in other.segments
        ] or method.outcome.segments
        gpus = sum(part.num_gpus for part in every)
        promised, given = (
            "n/a" if value is None else f"{value:.6g}"
            for value in (method.outcome.throughput, method.delivered)
        )
        yield method.label, promised, given, method.outcome.status, str(gpus or "n/a")
