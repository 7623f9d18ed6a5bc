"""The contract's file formats as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Basis = Literal["measured", "emulated", "estimated"]


class Strict(BaseModel):
    """No unknown keys, no coercion of text to numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class GraphNodeFile(Strict):
    id: Name
    kind: Literal["input", "parameter", "buffer", "constant", "op", "output"]
    op: str = ""
    target: str = ""
    inputs: list[str] = []
    module: str = ""
    shape: list[int | str] | None = None
    dtype: str | None = None
    output_bytes: Whole = 0
    source: str = ""
    code: str = ""


class GraphFile(Strict):
    format: Literal["torchsplit.graph"]
    version: Literal[1]
    architecture_hash: str = ""
    traced_batch: Count = 1
    route: Literal["", "non-strict", "strict", "draft", "read"] = ""
    notes: list[str] = []
    nodes: list[GraphNodeFile]
    subgraphs: dict[str, GraphFile] = {}


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
    throughput_rps: NonNegative
    latency_ms: NonNegative
    low_rps: NonNegative | None = None
    high_rps: NonNegative | None = None
    memory_gib: NonNegative | None = None
    basis: Basis
    device: str | None = None
    percentiles_ms: LatencyPercentilesFile | None = None
    memory_parts_gib: MemoryPartsFile | None = None


class ProfileFailureFile(Strict):
    stage: Name
    gpu_type: Name
    profile: str | None = None
    batch_size: Count
    processes: Count = 1
    reason: Literal["out_of_memory", "failed", "time_limit", "crashed", "device_lost"]
    message: str
    device: str | None = None


class NodeProfileFile(Strict):
    id: Name
    time_share: NonNegative
    output_bytes: Whole
    peak_bytes: Whole
    time_shares: dict[Annotated[int, Field(ge=1, strict=False)], NonNegative] = {}


class ProfileFile(Strict):
    format: Literal["torchsplit.profile"]
    version: Literal[1]
    source: str
    architecture_hash: str
    environment: dict[str, Any] = {}
    rows: list[ProfileRowFile]
    nodes: list[NodeProfileFile] = []
    failures: list[ProfileFailureFile] = []


class FleetEntryFile(Strict):
    id: Name | None = None
    type: Name
    count: Count = 1
    layouts: list[list[Name]] | None = None
    cost: NonNegative = 1.0


class PointFile(Strict):
    gpu_type: Name
    profile: Name
    batch_size: Count
    processes: Count = 1
    throughput_rps: NonNegative
    latency_ms: NonNegative
    memory_gib: NonNegative | None = None
    basis: Basis = "measured"


class StageFile(Strict):
    name: Name
    points: list[PointFile] = []


class VariantFile(Strict):
    name: Name
    cut_bytes: list[NonNegative] = []
    allowed: bool = True
    stages: Annotated[list[StageFile], Field(min_length=1)]


class PlanModelFile(Strict):
    name: Name
    weight: Positive = 1.0
    demand_rps: Positive = 1.0
    min_throughput_rps: NonNegative | None = None
    max_latency_ms: Positive | None = None
    cap_at_demand: bool = False
    variants: Annotated[list[VariantFile], Field(min_length=1)]


class ColocationFile(Strict):
    models: Annotated[list[Name], Field(min_length=2)]
    mode: Literal["hard", "soft"] = "hard"
    bytes_per_request: NonNegative = 0.0


class ObjectiveFile(Strict):
    kind: Literal["leximin", "max_min", "weighted_sum", "min_gpus"] = "leximin"
    memory_violation_penalty: NonNegative | None = None
    separation_weight: NonNegative = 0.0


class SolverFile(Strict):
    time_limit_s: Positive = 60.0


class PlanRequestFile(Strict):
    format: Literal["torchsplit.plan_request"]
    version: Literal[1]
    gpus: list[FleetEntryFile]
    models: list[PlanModelFile]
    colocations: list[ColocationFile] = []
    objective: ObjectiveFile = ObjectiveFile()
    sharing: Literal["exclusive", "fractional"] = "exclusive"
    link_gb_per_s: Positive | None = None
    max_tenants_per_slice: Count | None = None
    solver: SolverFile = SolverFile()


class TenantFile(Strict):
    model: Name
    variant: Name
    stage: Name
    share: NonNegative
    batch_size: Count
    processes: Count
    throughput_rps: NonNegative
    memory_gib: NonNegative | None


class PlannedSliceFile(Strict):
    profile: Name
    start: Whole
    tenants: list[TenantFile] = []


class PlannedGpuFile(Strict):
    id: Name
    type: Name
    used: bool
    slices: list[PlannedSliceFile] = []


class PlannedModelFile(Strict):
    name: Name
    variant: str | None
    throughput_rps: NonNegative
    normalised: NonNegative
    latency_ms: NonNegative | None


class ObjectiveValueFile(Strict):
    kind: Literal["leximin", "max_min", "weighted_sum", "min_gpus"]
    value: Finite | None
    sorted_normalised: list[NonNegative] = []
    bound: Finite | None = None
    gap: NonNegative | None = None
    proven_levels: Whole = 0


class DemandFile(Strict):
    model: str | None = None
    models: list[str] | None = None
    demand: Literal["min_throughput_rps", "max_latency_ms", "colocation"]


class ConflictFile(Strict):
    demands: list[DemandFile]
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
    models: list[str] = []
    gpu_type: str | None = None
    gpu_id: str | None = None
    layout: list[Name] = []


class ModelLimitFile(Strict):
    kind: Literal[
        "capacity",
        "min_throughput_rps",
        "max_latency_ms",
        "memory",
        "colocation",
        "max_tenants_per_slice",
        "cap_at_demand",
        "no_admissible_point",
        "objective",
    ]
    binds: bool | None
    change: ChangeEffectFile | None = None


class ModelBindingFile(Strict):
    model: Name
    level: Count
    normalised: NonNegative
    limits: list[ModelLimitFile]


class LayoutReasonFile(Strict):
    gpu_type: Name
    gpu_id: Name
    layout: list[Name]
    reason: Literal["no_use", "dominated", "tried", "not_examined"]
    dominated_by: list[Name] = []
    matching: list[Annotated[list[Name], Field(min_length=2, max_length=2)]] = []
    trial: ChangeEffectFile | None = None


class PriceStepFile(Strict):
    step: Literal["relaxed", "pooled", "packed", "shared", "whole_slices", "plan"]
    value: Finite | None
    bound: Finite | None
    loss: NonNegative | None
    proven: bool


class PlanExplanationFile(Strict):
    models: list[ModelBindingFile]
    changes: list[ChangeEffectFile]
    layouts: list[LayoutReasonFile]
    steps: list[PriceStepFile]
    seconds: NonNegative
    complete: bool


class StatisticsFile(Strict):
    build_s: NonNegative
    solve_s: NonNegative
    verify_s: NonNegative
    solver: str
    details: dict[str, str | int | float] = {}


class PlanOutcomeFile(Strict):
    format: Literal["torchsplit.plan"]
    version: Literal[1]
    request_sha256: str
    status: Literal["optimal", "feasible", "infeasible", "timeout"]
    objective: ObjectiveValueFile
    gpus: list[PlannedGpuFile]
    models: list[PlannedModelFile]
    conflicts: list[ConflictFile] = []
    least_relaxation: list[RelaxationFile] | None = None
    warnings: list[str] = []
    statistics: StatisticsFile
    explanation: PlanExplanationFile | None = None
