"""Placement requests for tests: the published tiny case, and random small ones in which links and memory bind."""

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
    RooflineGpu,
    RooflineThroughput,
)

COEFFICIENTS = {
    "A100": LinearCoefficients(-0.01, 5.0, 2.0, 150.0),
    "V100": LinearCoefficients(-0.008, 3.0, 1.5, 100.0),
    "H100": LinearCoefficients(-0.012, 6.0, 2.5, 200.0),
    "A10": LinearCoefficients(-0.007, 2.0, 1.2, 70.0),
    "T4": LinearCoefficients(-0.005, 1.5, 0.8, 50.0),
}

TINY_LINKS = (
    (0.0, 400.0, 200.0, 200.0), (400.0, 0.0, 200.0, 200.0), (200.0, 200.0, 0.0, 300.0),
    (200.0, 200.0, 300.0, 0.0),
)  # fmt: skip


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


PEAKS = {
    "A100": RooflineGpu(300.0, 2000.0), "V100": RooflineGpu(100.0, 900.0), "T4": RooflineGpu(60.0, 300.0),
    "A10": RooflineGpu(120.0, 600.0),
}  # fmt: skip


def random_decode(seed: int, split: str, *, phase: str = "decode") -> PlacementRequest:
    """2 to 4 layers on 2 to 4 GPUs, where memory, slow links and the sequences in flight bind in turn."""
    draw = random.Random(f"decode {seed} {split}")
    layers, gpus = draw.choice(((2, 4), (3, 3), (3, 4), (4, 3), (4, 4), (2, 3), (3, 2)))
    types = [draw.choice(tuple(PEAKS)) for _ in range(gpus)]
    if draw.random() < 0.6:
        types[1] = types[0]
    # Half of the fleets have links of two values, so that GPUs can be exchanged.
    tiers = (draw.uniform(0.1, 0.5), draw.uniform(0.01, 0.1)) if draw.random() < 0.5 else None
    links = tuple(
        tuple(
            0.0
            if i == j or draw.random() < 0.1
            else tiers[i // 2 != j // 2]
            if tiers
            else 10 ** draw.uniform(-2.3, -0.3)
            for j in range(gpus)
        )
        for i in range(gpus)
    )
    batch = draw.choice((4, 8, 16))
    decode = phase == "decode"
    in_flight = draw.choice((None, None, batch, batch + 3, 2 * batch, 5 * batch)) if decode else None
    return PlacementRequest(
        PlacementModel(
            layers, 4096, 11008, draw.choice((0.3, 0.9)), draw.choice((512, 2048)), batch,
            key_value_size=draw.choice((None, 1024, 4096)), active_layer_weight_gib=draw.choice((None, 0.2)),
            sequences_in_flight=in_flight, prefill_chunk=draw.choice((None, 256)) if decode else None,
        ),
        tuple(
            PlacementGpu(f"gpu{i}", name, draw.choice((1.2, 1.5, 2.2, 3.0, 4.4, 9.0)))
            for i, name in enumerate(types)
        ),
        RooflineThroughput(phase, gpus=PEAKS),  # type: ignore[arg-type]
        links,
        max_gpus_per_segment=draw.choice((1, 2, 2, 3)),
        communication_efficiency=draw.choice((0.6, 0.85, 1.0)),
        units=draw.choice(("tokens_per_s", "tokens_per_s", "seed_literal")),
        split=split,  # type: ignore[arg-type]
        same_type_segments=draw.random() < 0.2,
    )  # fmt: skip
