"""Placement requests and outcomes as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from torchsplit_core.files.models import Basis, Count, Finite, Name, NonNegative, Positive, Strict, Whole

GpuIdFile = int | Name
Units = Literal["tokens_per_s", "seed_literal"]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class PlacementModelFile(Strict):
    layers: Count
    hidden_size: Count
    ffn_size: Count
    layer_weight_gb: NonNegative
    sequence_length: Count
    batch_size: Count
    bytes_per_element: Positive = 2.0
    key_value_size: Count | None = None
    active_layer_weight_gb: NonNegative | None = None


class PlacementGpuFile(Strict):
    id: GpuIdFile
    type: Name
    memory_gb: Positive


class LinearCoefficientsFile(Strict):
    sequence: Finite
    batch: Finite
    layers: Finite
    constant: Finite


class LinearThroughputFile(Strict):
    kind: Literal["linear"]
    coefficients: dict[str, LinearCoefficientsFile]


class ThroughputRowFile(Strict):
    gpu_type: Name
    batch: Positive
    layers: Count
    throughput: Positive


class TableThroughputFile(Strict):
    kind: Literal["table"]
    rows: list[ThroughputRowFile]


class RooflineGpuFile(Strict):
    tflops: Positive
    memory_gb_per_s: Positive


class RooflineThroughputFile(Strict):
    kind: Literal["roofline"]
    phase: Literal["prefill", "decode"]
    compute_efficiency: Share | None = None
    memory_efficiency: Share | None = None
    gpus: dict[str, RooflineGpuFile] = {}


class PlacementSolverFile(Strict):
    method: Literal["exact", "literal"] = "exact"
    time_limit_s: Positive = 60.0


class PlacementRequestFile(Strict):
    format: Literal["torchsplit.placement_request"]
    version: Literal[1]
    model: PlacementModelFile
    gpus: list[PlacementGpuFile]
    throughput: Annotated[
        LinearThroughputFile | TableThroughputFile | RooflineThroughputFile, Field(discriminator="kind")
    ]
    bandwidth_gb_per_s: list[list[NonNegative]]
    max_gpus_per_segment: Count = 1
    communication_efficiency: Share = 0.85
    units: Units = "tokens_per_s"
    split: Literal["equal", "proportional"] = "equal"
    same_type_segments: bool = False
    max_replicas: Count = 1
    solver: PlacementSolverFile = PlacementSolverFile()


class PlacedSegmentFile(Strict):
    start_layer: Count
    end_layer: Count
    gpu_ids: list[GpuIdFile]
    throughput: Positive
    batch_per_gpu: Positive | list[Positive]
    memory_gb: list[NonNegative] = []


class PlacedLinkFile(Strict):
    from_segment: Whole
    to_segment: Whole
    throughput: Positive


class PlacedReplicaFile(Strict):
    throughput: Positive
    latency_s: Positive
    segments: list[PlacedSegmentFile]
    links: list[PlacedLinkFile]


class PlacementOutcomeFile(Strict):
    format: Literal["torchsplit.placement"]
    version: Literal[1]
    status: Literal["optimal", "feasible", "infeasible", "timeout"]
    throughput: NonNegative | None
    bound: NonNegative | None
    gap: NonNegative | None
    segments: list[PlacedSegmentFile]
    links: list[PlacedLinkFile]
    message: str = ""
    units: Units = "tokens_per_s"
    basis: Basis = "estimated"
    latency_s: Positive | None = None
    replicas: list[PlacedReplicaFile] = []
    statistics: dict[str, Any] = {}


class FrontierPointFile(Strict):
    throughput: Positive
    latency_s: Positive
    latency_bound_s: NonNegative
    proven: bool
    segments: list[PlacedSegmentFile]
    links: list[PlacedLinkFile]


class PlacementFrontierFile(Strict):
    format: Literal["torchsplit.placement_frontier"]
    version: Literal[1]
    status: Literal["optimal", "feasible", "infeasible", "timeout"]
    points: list[FrontierPointFile]
    throughput_bound: NonNegative | None
    complete: bool
    message: str = ""
    units: Units = "tokens_per_s"
    basis: Basis = "estimated"
    statistics: dict[str, Any] = {}
