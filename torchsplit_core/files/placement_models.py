"""Placement requests and outcomes as strict pydantic models, field for field as docs/file-formats.md has them.

Memory and links of a fleet are GiB in every version. Version 1 says GB for them; version 2 says `memory_gib` and
`bandwidth_gib_per_s`, and has `layer_weight_gb` under the name that it always had.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import (
    Amount,
    Basis,
    Count,
    Divisor,
    Facts,
    Name,
    NonNegative,
    Positive,
    Rows,
    Signed,
    Strict,
    Table,
    Whole,
)
from torchsplit_core.values.limits import LARGEST_WHOLE, SMALLEST_POSITIVE
from torchsplit_core.values.placement import Split
from torchsplit_core.values.status import SolveStatus

GpuIdFile = Annotated[int, Field(ge=-LARGEST_WHOLE, le=LARGEST_WHOLE)] | Name
Units = Literal["tokens_per_s", "seed_literal"]
Share = Annotated[float, Field(ge=SMALLEST_POSITIVE, le=1, allow_inf_nan=False)]


class PlacementModelFile(Strict):
    layers: Count
    hidden_size: Count
    ffn_size: Count
    layer_weight_gib: Annotated[Amount, Field(alias="layer_weight_gb")]
    sequence_length: Count
    batch_size: Count
    bytes_per_element: Divisor = 2.0
    key_value_size: Count | None = None
    active_layer_weight_gib: Annotated[Amount | None, Field(alias="active_layer_weight_gb")] = None
    sequences_in_flight: Count | None = None
    prefill_chunk: Count | None = None


class PlacementGpuFile(Strict):
    id: GpuIdFile
    type: Name
    memory_gib: Divisor


class LinearCoefficientsFile(Strict):
    sequence: Signed
    batch: Signed
    layers: Signed
    constant: Signed


class LinearThroughputFile(Strict):
    kind: Literal["linear"]
    coefficients: Table[str, LinearCoefficientsFile]


class ThroughputRowFile(Strict):
    gpu_type: Name
    batch: Divisor
    layers: Count
    throughput: Divisor


class TableThroughputFile(Strict):
    kind: Literal["table"]
    rows: Rows[ThroughputRowFile]


class RooflineGpuFile(Strict):
    tflops: Divisor
    memory_gb_per_s: Divisor


class RooflineThroughputFile(Strict):
    kind: Literal["roofline"]
    phase: Literal["prefill", "decode"]
    compute_efficiency: Share | None = None
    memory_efficiency: Share | None = None
    gpus: Table[str, RooflineGpuFile] = {}


class PlacementSolverFile(Strict):
    method: Literal["exact", "literal"] = "exact"
    time_limit_s: Divisor = 60.0


class PlacementRequestFile(Strict):
    format: Literal["torchsplit.placement_request"]
    version: Literal[2]
    model: PlacementModelFile
    gpus: Rows[PlacementGpuFile]
    throughput: Annotated[
        LinearThroughputFile | TableThroughputFile | RooflineThroughputFile, Field(discriminator="kind")
    ]
    bandwidth_gib_per_s: Rows[Rows[Amount]]
    max_gpus_per_segment: Count = 1
    communication_efficiency: Share = 0.85
    units: Units = "tokens_per_s"
    split: Split = "equal"
    same_type_segments: bool = False
    max_replicas: Count = 1
    solver: PlacementSolverFile = PlacementSolverFile()


class PlacedSegmentFile(Strict):
    start_layer: Count
    end_layer: Count
    gpu_ids: Rows[GpuIdFile]
    throughput: Positive
    batch_per_gpu: Positive | Rows[Positive]
    memory_gib: Rows[NonNegative] = []
    gpu_types: Table[str, Count] = {}
    num_gpus: Whole = 0
    workload_per_gpu: NonNegative | Rows[Positive] = 0.0


class PlacedLinkFile(Strict):
    from_segment: Whole
    to_segment: Whole
    throughput: Positive


class PlacedReplicaFile(Strict):
    throughput: Positive
    latency_s: Positive
    segments: Rows[PlacedSegmentFile]
    links: Rows[PlacedLinkFile]
    sequences_in_flight: Count | None = None


class PlacementOutcomeFile(Strict):
    format: Literal["torchsplit.placement"]
    version: Literal[2]
    status: SolveStatus
    throughput: NonNegative | None
    bound: NonNegative | None
    gap: NonNegative | None
    segments: Rows[PlacedSegmentFile]
    links: Rows[PlacedLinkFile]
    message: str = ""
    units: Units = "tokens_per_s"
    basis: Basis = "estimated"
    latency_s: Positive | None = None
    replicas: Rows[PlacedReplicaFile] = []
    sequences_in_flight: Count | None = None
    statistics: Facts = {}


class FrontierPointFile(Strict):
    throughput: Positive
    latency_s: Positive
    latency_bound_s: NonNegative
    proven: bool
    segments: Rows[PlacedSegmentFile]
    links: Rows[PlacedLinkFile]
    sequences_in_flight: Count | None = None


class PlacementFrontierFile(Strict):
    format: Literal["torchsplit.placement_frontier"]
    version: Literal[2]
    status: SolveStatus
    points: Rows[FrontierPointFile]
    throughput_bound: NonNegative | None
    complete: bool
    message: str = ""
    units: Units = "tokens_per_s"
    basis: Basis = "estimated"
    statistics: Facts = {}


class PlacementGpuFile1(PlacementGpuFile):
    memory_gib: Annotated[Divisor, Field(alias="memory_gb")]


class PlacementRequestFile1(PlacementRequestFile):
    version: Literal[1]  # type: ignore[assignment]
    gpus: Rows[PlacementGpuFile1]  # type: ignore[assignment]
    bandwidth_gib_per_s: Annotated[Rows[Rows[Amount]], Field(alias="bandwidth_gb_per_s")]


class PlacedSegmentFile1(PlacedSegmentFile):
    memory_gib: Annotated[Rows[NonNegative], Field(alias="memory_gb")] = []


class PlacedReplicaFile1(PlacedReplicaFile):
    segments: Rows[PlacedSegmentFile1]  # type: ignore[assignment]


class PlacementOutcomeFile1(PlacementOutcomeFile):
    version: Literal[1]  # type: ignore[assignment]
    segments: Rows[PlacedSegmentFile1]  # type: ignore[assignment]
    replicas: Rows[PlacedReplicaFile1] = []  # type: ignore[assignment]


class FrontierPointFile1(FrontierPointFile):
    segments: Rows[PlacedSegmentFile1]  # type: ignore[assignment]


class PlacementFrontierFile1(PlacementFrontierFile):
    version: Literal[1]  # type: ignore[assignment]
    points: Rows[FrontierPointFile1]  # type: ignore[assignment]
