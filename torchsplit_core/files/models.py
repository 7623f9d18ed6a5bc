"""The contract's file formats as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import (
    Amount,
    Basis,
    Count,
    Divisor,
    Facts,
    Finite,
    Free,
    Name,
    NodeId,
    NonNegative,
    Rows,
    Strict,
    Table,
    Tier,
    Whole,
)
from torchsplit_core.files.simulation_models import ArrivalsFile, PaceFile, Percentile
from torchsplit_core.values import ColocationMode, ObjectiveKind
from torchsplit_core.values.status import SolveStatus


class GraphNodeFile(Strict):
    id: NodeId
    kind: Literal["input", "parameter", "buffer", "constant", "op", "output"]
    op: str = ""
    target: str = ""
    inputs: Rows[str] = []
    module: str = ""
    shape: Rows[int | str] | None = None
    dtype: str | None = None
    output_bytes: Whole = 0
    source: str = ""
    code: str = ""
    arguments: Free = {}


class GraphFile(Strict):
    format: Literal["torchsplit.graph"]
    version: Literal[1]
    architecture_hash: str = ""
    traced_batch: Count = 1
    route: Literal["", "non-strict", "strict", "draft", "read"] = ""
    notes: Rows[str] = []
    nodes: Rows[GraphNodeFile]
    subgraphs: Table[str, GraphFile] = {}


class PercentileFile(Strict):
    value: NonNegative
    low: NonNegative | None = None
    high: NonNegative | None = None


class LatencyPercentilesFile(Strict):
    runs: Count
    p50: PercentileFile
    p95: PercentileFile
    p99: PercentileFile


class MemoryPartsFile(Strict):
    weights: NonNegative
    activations: NonNegative
    transient: NonNegative
    context: NonNegative = 0.0
    basis: Literal["measured", "estimated"]


class ProfileRowFile(Strict):
    stage: Name
    gpu_type: Name
    profile: str | None = None
    batch_size: Count
    processes: Count = 1
    throughput_rps: Amount
    latency_ms: Amount
    low_rps: Amount | None = None
    high_rps: Amount | None = None
    memory_gib: Amount | None = None
    basis: Basis
    device: str | None = None
    percentiles_ms: LatencyPercentilesFile | None = None
    memory_parts_gib: MemoryPartsFile | None = None
    sequence_length: Count | None = None
    pace: PaceFile | None = None


class ProfileFailureFile(Strict):
    stage: Name
    gpu_type: Name
    profile: str | None = None
    batch_size: Count
    processes: Count = 1
    reason: Literal["out_of_memory", "failed", "time_limit", "crashed", "device_lost"]
    message: str
    device: str | None = None
    sequence_length: Count | None = None


class NodeTimesFile(Strict):
    mean: NonNegative
    std: NonNegative
    min: NonNegative
    max: NonNegative


class NodeProfileFile(Strict):
    id: NodeId
    time_share: NonNegative
    output_bytes: Whole
    peak_bytes: Whole
    time_shares: Table[Annotated[int, Field(ge=1, strict=False)], NonNegative] = {}
    times_ms: Table[Annotated[int, Field(ge=1, strict=False)], NodeTimesFile] = {}


class ProfileFile(Strict):
    format: Literal["torchsplit.profile"]
    version: Literal[1]
    source: str
    architecture_hash: str
    environment: Free = {}
    rows: Rows[ProfileRowFile]
    nodes: Rows[NodeProfileFile] = []
    failures: Rows[ProfileFailureFile] = []
    name: Literal[""] | Name = ""


class FleetEntryFile(Strict):
    id: Name | None = None
    type: Name
    count: Count = 1
    layouts: Rows[Rows[Name]] | None = None
    cost: Amount | None = None
    node: Name | None = None
    mig: bool = True


class PointFile(Strict):
    gpu_type: Name
    profile: Name | None
    batch_size: Count
    processes: Count = 1
    throughput_rps: Amount
    latency_ms: Amount
    memory_gib: Amount | None = None
    basis: Basis = "measured"
    low_rps: Amount | None = None
    high_rps: Amount | None = None
    pace: PaceFile | None = None


class StageFile(Strict):
    name: Name
    points: Rows[PointFile] = []
    nodes: Rows[NodeId] = []


class VariantFile(Strict):
    name: Name
    cut_bytes: Rows[Amount] = []
    cut_bytes_per_request: Rows[Amount] = []
    allowed: bool = True
    stages: Annotated[Rows[StageFile], Field(min_length=1)]


class PlanModelFile(Strict):
    name: Name
    weight: Divisor = 1.0
    demand_rps: Divisor = 1.0
    min_throughput_rps: Amount | None = None
    max_latency_ms: Divisor | None = None
    cap_at_demand: bool = False
    source: Annotated[str, Field(min_length=1)] | None = None
    max_response_ms: Divisor | None = None
    response_percentile: Percentile = 95.0
    arrivals: ArrivalsFile | None = None
    bytes_per_request: Amount | None = None
    tier: Tier = 0
    variants: Annotated[Rows[VariantFile], Field(min_length=1)]


class ColocationFile(Strict):
    models: Annotated[Rows[Name], Field(min_length=2)]
    mode: ColocationMode = "hard"
    bytes_per_request: Amount = 0.0


class ObjectiveFile(Strict):
    kind: ObjectiveKind = "leximin"
    memory_violation_penalty: Amount | None = None
    separation_weight: Amount = 0.0
    survives: Literal[0, 1] = 0


class SolverFile(Strict):
    time_limit_s: Divisor = 60.0
    plan_at: Literal["nominal", "low"] = "nominal"


class FrontCostsFile(Strict):
    ms_per_request: Divisor
    ms_per_batch: Amount = 0.0
    ms_per_mb: Amount = 0.0
    hand_over_ms: Amount = 0.0
    ms_per_request_low: Amount | None = None
    ms_per_request_high: Amount | None = None
    cores: Count | None = None
    host: str = ""
    generator_ms: Amount = 0.0
    basis: Basis = "measured"


class PlanRequestFile(Strict):
    format: Literal["torchsplit.plan_request"]
    version: Literal[1]
    gpus: Rows[FleetEntryFile]
    models: Rows[PlanModelFile]
    colocations: Rows[ColocationFile] = []
    objective: ObjectiveFile = ObjectiveFile()
    sharing: Literal["exclusive", "fractional"] = "exclusive"
    link_gb_per_s: Divisor | None = None
    network_gb_per_s: Divisor | None = None
    max_tenants_per_slice: Count | None = None
    solver: SolverFile = SolverFile()
    front: FrontCostsFile | None = None


class TenantFile(Strict):
    model: Name
    variant: Name
    stage: Name
    share: NonNegative
    batch_size: Count
    processes: Count
    throughput_rps: NonNegative
    memory_gib: NonNegative | None
    basis: Basis | None = None
    low_rps: NonNegative | None = None
    high_rps: NonNegative | None = None


class PlannedSliceFile(Strict):
    profile: Name | None
    start: Whole
    tenants: Rows[TenantFile] = []


class PlannedGpuFile(Strict):
    id: Name
    type: Name
    used: bool
    slices: Rows[PlannedSliceFile] = []


class ResponsePercentilesFile(Strict):
    p50: NonNegative
    p95: NonNegative
    p99: NonNegative


class PlannedModelFile(Strict):
    name: Name
    variant: str | None
    throughput_rps: NonNegative
    normalised: NonNegative
    latency_ms: NonNegative | None
    low_rps: NonNegative | None = None
    high_rps: NonNegative | None = None
    basis: Basis | None = None
    bytes_across_cuts_per_s: NonNegative | None = None
    response_ms: ResponsePercentilesFile | None = None
    max_wait_ms: NonNegative | None = None
    response_bound_by: Literal["rate", "fill", "service"] | None = None
    front_rps: NonNegative | None = None


class PlannedFrontFile(Strict):
    load_factor: NonNegative
    core_share: NonNegative
    shared: bool = False


class RoutedBytesFile(Strict):
    bytes_per_s: NonNegative
    bound: NonNegative | None = None
    gap: NonNegative | None = None


class ObjectiveValueFile(Strict):
    kind: ObjectiveKind
    value: Finite | None
    sorted_normalised: Rows[NonNegative] = []
    bound: Finite | None = None
    gap: NonNegative | None = None
    proven_levels: Whole = 0
    routed: RoutedBytesFile | None = None
    levels: Rows[Finite] = []


class DemandFile(Strict):
    model: str | None = None
    models: Rows[str] | None = None
    demand: Literal["min_throughput_rps", "max_latency_ms", "max_response_ms", "colocation"]


class ConflictFile(Strict):
    demands: Rows[DemandFile]
    message: str


class RelaxationFile(Strict):
    model: Name
    demand: Literal["min_throughput_rps", "max_latency_ms"]
    old: Annotated[Finite, Field(alias="from")]
    new: Annotated[Finite, Field(alias="to")]


class ChangeEffectFile(Strict):
    what: Literal[
        "gpu",
        "layout",
        "min_throughput_rps",
        "max_latency_ms",
        "memory",
        "colocation",
        "max_tenants_per_slice",
        "cap_at_demand",
        "link",
    ]
    effect: Literal["better", "same", "worse", "infeasible", "open", "not_examined"]
    old: Annotated[Finite | None, Field(alias="from")] = None
    new: Annotated[Finite | None, Field(alias="to")] = None
    level: Count | None = None
    value_before: Finite | None = None
    bound_before: Finite | None = None
    value_after: Finite | None = None
    bound_after: Finite | None = None
    proven: bool = False
    model: str | None = None
    models: Rows[str] = []
    gpu_type: str | None = None
    gpu_id: str | None = None
    layout: Rows[Name] = []


class ModelLimitFile(Strict):
    kind: Literal[
        "capacity",
        "min_throughput_rps",
        "max_latency_ms",
        "memory",
        "colocation",
        "max_tenants_per_slice",
        "cap_at_demand",
        "link",
        "no_admissible_point",
        "objective",
    ]
    binds: bool | None
    change: ChangeEffectFile | None = None


class ModelBindingFile(Strict):
    model: Name
    level: Count
    normalised: NonNegative
    limits: Rows[ModelLimitFile]


class LayoutReasonFile(Strict):
    gpu_type: Name
    gpu_id: Name
    layout: Rows[Name]
    reason: Literal["no_use", "dominated", "tried", "not_examined"]
    dominated_by: Rows[Name] = []
    matching: Rows[Annotated[Rows[Name], Field(min_length=2, max_length=2)]] = []
    trial: ChangeEffectFile | None = None


class PriceStepFile(Strict):
    step: Literal["relaxed", "pooled", "packed", "shared", "whole_slices", "plan"]
    value: Finite | None
    bound: Finite | None
    loss: NonNegative | None
    proven: bool


class PlanExplanationFile(Strict):
    models: Rows[ModelBindingFile]
    changes: Rows[ChangeEffectFile]
    layouts: Rows[LayoutReasonFile]
    steps: Rows[PriceStepFile]
    seconds: NonNegative
    complete: bool


class StatisticsFile(Strict):
    build_s: NonNegative
    solve_s: NonNegative
    verify_s: NonNegative
    solver: str
    details: Facts = {}


class PlanOutcomeFile(Strict):
    format: Literal["torchsplit.plan"]
    version: Literal[1]
    request_sha256: str
    status: SolveStatus
    objective: ObjectiveValueFile
    gpus: Rows[PlannedGpuFile]
    models: Rows[PlannedModelFile]
    conflicts: Rows[ConflictFile] = []
    least_relaxation: Rows[RelaxationFile] | None = None
    warnings: Rows[str] = []
    statistics: StatisticsFile
    explanation: PlanExplanationFile | None = None
    front: PlannedFrontFile | None = None
    cost_per_hour: NonNegative | None = None
    cost_per_million_requests: NonNegative | None = None
