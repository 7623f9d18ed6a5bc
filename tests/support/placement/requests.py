"""Placement requests for tests: the published tiny case, and random small ones in which links and memory bind."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from torchsplit_core.values import (
    LinearCoefficients,
    LinearThroughput,
    PlacementGpu,
    PlacementModel,
    PlacementRequest,
    PlacementSolver,
)

COEFFICIENTS = {
    "A100": LinearCoefficients(-0.01, 5.0, 2.0, 150.0),
    "V100": LinearCoefficients(-0.008, 3.0, 1.5, 100.0),
    "H100": LinearCoefficients(-0.012, 6.0, 2.5, 200.0),
    "A10": LinearCoefficients(-0.007, 2.0, 1.2, 70.0),
    "T4": LinearCoefficients(-0.005, 1.5, 0.8, 50.0),
}

TINY_LINKS = (
    (0.0, 400.0, 200.0, 200.0),
    (400.0, 0.0, 200.0, 200.0),
    (200.0, 200.0, 0.0, 300.0),
    (200.0, 200.0, 300.0, 0.0),
)


def tiny(most: int = 2, *, method: str = "exact", **changes: Any) -> PlacementRequest:
    """The published tiny case with at most so many GPUs in a segment."""
    gpus = tuple(PlacementGpu(i, "A100" if i < 2 else "V100", 80.0 if i < 2 else 32.0) for i in range(4))
    request = PlacementRequest(
        PlacementModel(4, 4096, 11008, 0.5, 2048, 16),
        gpus,
        LinearThroughput(COEFFICIENTS),
        TINY_LINKS,
        max_gpus_per_segment=most,
        communication_efficiency=0.85,
        solver=PlacementSolver(method),  # type: ignore[arg-type]
    )
    return replace(request, **changes)


def random_request(seed: int, units: str, split: str) -> PlacementRequest:
    """2 to 4 layers on 2 to 4 GPUs: links asymmetric and sometimes 0, some near the segments' throughputs."""
    draw = random.Random(f"{seed} {units} {split}")
    layers, gpus = draw.choice(((2, 4), (3, 3), (3, 4), (4, 3), (2, 3), (3, 2)))
    types = [draw.choice(("A100", "V100", "T4", "A10")) for _ in range(gpus)]
    if gpus > 2 and draw.random() < 0.5:
        types[1] = types[0]
    # Memory for one to all layers; activations take 0.1 GiB a sequence.
    fleet = tuple(
        PlacementGpu(f"gpu{i}", name, draw.choice((1.5, 2.2, 3.0, 4.4, 6.0))) for i, name in enumerate(types)
    )
    # What makes a link carry about 50 to 1,000 of the units.
    scale = 131072.0 if units == "tokens_per_s" else 4.0
    links = tuple(
        tuple(0.0 if draw.random() < 0.15 else draw.uniform(50.0, 1000.0) / scale for _ in range(gpus))
        for _ in range(gpus)
    )
    return PlacementRequest(
        PlacementModel(layers, 4096, 11008, draw.choice((0.5, 0.9, 1.0)), 2048, draw.choice((4, 8, 16))),
        fleet,
        LinearThroughput(COEFFICIENTS),
        links,
        max_gpus_per_segment=draw.choice((1, 2, 2, 3)),
        communication_efficiency=draw.choice((0.6, 0.85, 1.0)),
        units=units,  # type: ignore[arg-type]
        split=split,  # type: ignore[arg-type]
        same_type_segments=draw.random() < 0.2,
    )
