"""Strategy requests and outcomes as strict pydantic models, field for field as docs/file-formats.md has them."""

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
    Strict,
    Whole,
)
from torchsplit_core.values.status import SolveStatus
from torchsplit_core.values.training import Offload, Precision, Recompute, Shard

MOST = 2**20
"""Layers, experts, nodes and the like: sizes whose divisors are told in no time."""
Size = Annotated[int, Field(ge=1, le=MOST)]
Large = Annotated[int, Field(ge=1, le=2**31)]


class TransformerSizesFile(Strict):
    kind: Literal["transformer"]
    layers: Annotated[int, Field(ge=1, le=10_000)]
    hidden: Size
    heads: Size
    kv_heads: Size
    ffn: Size
    vocab: Large
    sequence: Large
    gated: bool = False
    experts: Annotated[int, Field(ge=1, le=10_000)] = 1
    experts_per_token: Size = 1
    tied_embeddings: bool = True


class MeasuredStepFile(Strict):
    batch: Count
    seconds: Positive


class SourceSizesFile(Strict):
    kind: Literal["source"]
    source: Annotated[str, Field(min_length=1)]
    profile: Annotated[str, Field(min_length=1)] | None = None
    measured_steps: Annotated[Rows[MeasuredStepFile], Field(max_length=3)] = []


class StrategyNodesFile(Strict):
    nodes: Annotated[int, Field(ge=1, le=100_000)]
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)]
    type: Name
    inside_gb_per_s: Amount | None = None
    between_gb_per_s: Amount | None = None
    host_memory_gib: Amount | None = None


class StrategyTrainingFile(Strict):
    global_batch: Size
    precision: Precision = "bf16"
    optimizer: Literal["adamw", "sgd"] = "adamw"


class StrategyFixFile(Strict):
    data: Count | None = None
    tensor: Count | None = None
    pipeline: Count | None = None
    context: Count | None = None
    expert: Count | None = None
    micro_batch: Count | None = None
    interleave: Count | None = None
    shard: Shard | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool | None = None
    offload: Offload | None = None


class StrategySolverFile(Strict):
    time_limit_s: Divisor = 20.0


class StrategyRequestFile(Strict):
    format: Literal["torchsplit.strategy_request"]
    version: Literal[1]
    model: Annotated[TransformerSizesFile | SourceSizesFile, Field(discriminator="kind")]
    fleet: Annotated[Rows[StrategyNodesFile], Field(min_length=1)]
    training: StrategyTrainingFile
    fix: StrategyFixFile = StrategyFixFile()
    top_k: Annotated[int, Field(ge=1, le=10_000)] = 10
    solver: StrategySolverFile = StrategySolverFile()


class StrategyMemoryFile(Strict):
    weights: NonNegative
    gradients: NonNegative
    optimizer: NonNegative
    activations: NonNegative
    communication: NonNegative
    reserve: NonNegative
    total: NonNegative


class StrategyPartsFile(Strict):
    compute: NonNegative
    tensor_communication: NonNegative
    pipeline_bubble: NonNegative
    pipeline_communication: NonNegative
    data_communication: NonNegative
    optimizer: NonNegative


class StrategyStageFile(Strict):
    fleet: Whole
    type: Name
    devices: Count
    stages: Count
    data: Count
    tensor: Count
    context: Count
    expert: Count
    micro_batch: Count
    interleave: Count
    shard: Shard
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload
    start_layer: Count
    end_layer: Count
    layers_per_stage: Rows[Count]
    sequences: Count
    batch_per_device: Count
    memory_gib: NonNegative
    seconds: NonNegative
    memory_gib_per_stage: Rows[NonNegative] = []
    seconds_per_stage: Rows[NonNegative] = []
    group: Whole = 0


class StrategyCandidateFile(Strict):
    data: Count
    tensor: Count
    pipeline: Count
    context: Count
    expert: Count
    micro_batch: Count
    interleave: Count
    shard: Shard
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload
    micro_batches: Count
    batch_per_device: Count
    seconds_per_step: Positive
    low_s: Positive
    high_s: Positive
    tokens_per_s: Positive
    samples_per_s: Positive
    mfu: NonNegative
    memory_gib: StrategyMemoryFile
    fits: bool
    parts_s: StrategyPartsFile
    basis: Basis = "estimated"
    devices: Whole = 0
    stages: Rows[StrategyStageFile] = []
    not_exportable: str | None = None


class StrategyRefusalFile(Strict):
    reason: str
    count: Whole
    nearest: str | None = None
    missing_gib: NonNegative | None = None


class StrategyOutcomeFile(Strict):
    format: Literal["torchsplit.strategy"]
    version: Literal[1]
    status: SolveStatus
    candidates: Rows[StrategyCandidateFile]
    considered: Whole
    refused: Rows[StrategyRefusalFile]
    message: str
    bound_s: NonNegative | None = None
    statistics: Facts = {}
