"""The placement requests of the examples: the published cases, and the decode phase of a 70B model."""

from __future__ import annotations

from dataclasses import replace

from torchsplit_core.values import (
    LinearCoefficients,
    LinearThroughput,
    PlacementGpu,
    PlacementModel,
    PlacementRequest,
    RooflineThroughput,
)

COEFFICIENTS = {
    "H100": LinearCoefficients(-0.012, 6.0, 2.5, 200.0),
    "A100": LinearCoefficients(-0.01, 5.0, 2.0, 150.0),
    "V100": LinearCoefficients(-0.008, 3.0, 1.5, 100.0),
    "A10": LinearCoefficients(-0.007, 2.0, 1.2, 70.0),
    "T4": LinearCoefficients(-0.005, 1.5, 0.8, 50.0),
}
"""Coefficients of the linear throughput model in the published placement cases."""

WITHIN_GIB_PER_S = {"H100": 450.0, "A10": 32.0, "T4": 16.0}
ACROSS_GIB_PER_S = 12.5
"""Assumed links of the 30 GPUs: NVLink, PCIe 4.0 and 3.0 within a GPU type, 100 Gbit/s Ethernet between types."""


def tiny_placement() -> PlacementRequest:
    """The published tiny case: four layers, two A100 and two V100, at most two in a segment."""
    types = ("A100", "A100", "V100", "V100")
    between = {("A100", "A100"): 400.0, ("V100", "V100"): 300.0}
    return PlacementRequest(
        PlacementModel(4, 4096, 11008, 0.5, 2048, 16),
        tuple(PlacementGpu(i, name, 80.0 if name == "A100" else 32.0) for i, name in enumerate(types)),
        LinearThroughput({name: COEFFICIENTS[name] for name in ("A100", "V100")}),
        tuple(
            tuple(0.0 if i == j else between.get((a, b), 200.0) for j, b in enumerate(types))
            for i, a in enumerate(types)
        ),
        max_gpus_per_segment=2,
        communication_efficiency=0.85,
    )


def thirty_gpus() -> PlacementRequest:
    """The published demo case: 14 layers, a batch of 100, ten H100, ten A10 and ten T4."""
    fleet = (("H100", 80.0), ("A10", 24.0), ("T4", 16.0))
    types = [name for name, _ in fleet for _ in range(10)]
    return replace(
        tiny_placement(),
        model=PlacementModel(14, 4096, 11008, 0.5, 2048, 100),
        gpus=tuple(
            PlacementGpu(f"{name.lower()}-{i}", name, memory) for name, memory in fleet for i in range(10)
        ),
        throughput=LinearThroughput({name: COEFFICIENTS[name] for name, _ in fleet}),
        bandwidth_gib_per_s=tuple(
            tuple(
                0.0 if i == j else WITHIN_GIB_PER_S[a] if a == b else ACROSS_GIB_PER_S
                for j, b in enumerate(types)
            )
            for i, a in enumerate(types)
        ),
        max_gpus_per_segment=3,
    )


def decode_70b() -> PlacementRequest:
    """The decode phase of a model with the sizes of Llama-70B, on two nodes of four H100 and two of four A100."""
    nodes = [number // 4 for number in range(16)]
    inside = {0: 450.0, 1: 450.0, 2: 300.0, 3: 300.0}
    return PlacementRequest(
        PlacementModel(80, 8192, 28672, 1.6, 2048, 64, 2.0, key_value_size=1024),
        tuple(
            PlacementGpu(f"node{node}/gpu{i % 4}", "H100-SXM5-80GB" if node < 2 else "A100-80GB", 80.0)
            for i, node in enumerate(nodes)
        ),
        RooflineThroughput("decode"),
        tuple(
            tuple(0.0 if i == j else inside[a] if a == b else 25.0 for j, b in enumerate(nodes))
            for i, a in enumerate(nodes)
        ),
        max_gpus_per_segment=2,
        communication_efficiency=0.85,
    )
