"""Partition requests and outcomes as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import (
    Basis,
    Count,
    Divisor,
    Facts,
    Finite,
    NodeId,
    NonNegative,
    Rows,
    Strict,
    Table,
    Whole,
)
from torchsplit_core.files.models import SolverFile
from torchsplit_core.values.limits import LARGEST_MAGNITUDE
from torchsplit_core.values.status import SolveStatus


class PartitionNodeFile(Strict):
    id: NodeId
    time_ms: Annotated[NonNegative, Field(le=LARGEST_MAGNITUDE)]
    memory_bytes: Whole = 0
    output_bytes: Whole = 0
    group: str | None = None


class EdgeFile(Strict):
    source: NodeId
    target: NodeId


class DevicesFile(Strict):
    count: Count
    memory_bytes: Whole | None = None
    link_gb_per_s: Divisor | None = None
    time_factors: Rows[Divisor] | None = None


class PartitionRequestFile(Strict):
    format: Literal["torchsplit.partition_request"]
    version: Literal[1]
    nodes: Rows[PartitionNodeFile]
    edges: Rows[EdgeFile]
    devices: DevicesFile
    contiguous: bool = True
    top_k: Count = 5
    solver: SolverFile = SolverFile()
    objective: Literal["throughput", "latency"] = "throughput"


class CandidateFile(Strict):
    stages: Rows[Rows[str]]
    loads_ms: Rows[NonNegative]
    max_load_ms: NonNegative
    cut_bytes: Rows[Whole]
    peak_memory_bytes: Rows[Whole]
    basis: Basis = "estimated"
    latency_ms: NonNegative | None = None
    devices: Rows[Whole] = []
    times_ms: Table[Annotated[int, Field(ge=1, strict=False)], Rows[NonNegative]] = {}
    batch_sensitivity: Rows[Finite | None] = []
    weight_bytes: Rows[Whole] = []
    cut_bytes_fixed: Rows[NonNegative] = []
    cut_bytes_per_request: Rows[NonNegative] = []


class PartitionOutcomeFile(Strict):
    format: Literal["torchsplit.partition"]
    version: Literal[1]
    status: SolveStatus
    candidates: Rows[CandidateFile]
    bound_ms: NonNegative | None
    gap: NonNegative | None
    message: str = ""
    source: str = ""
    architecture_hash: str = ""
    statistics: Facts = {}
    devices: DevicesFile | None = None
    objective: Literal["throughput", "latency"] = "throughput"
