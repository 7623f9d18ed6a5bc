"""Partition requests and outcomes as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from torchsplit_core.files.models import (
    Basis,
    Count,
    Finite,
    Name,
    NonNegative,
    Positive,
    SolverFile,
    Strict,
    Whole,
)


class PartitionNodeFile(Strict):
    id: Name
    time_ms: NonNegative
    memory_bytes: Whole = 0
    output_bytes: Whole = 0
    group: str | None = None


class EdgeFile(Strict):
    source: Name
    target: Name


class DevicesFile(Strict):
    count: Count
    memory_bytes: Whole | None = None
    link_gb_per_s: Positive | None = None
    time_factors: list[Positive] | None = None


class PartitionRequestFile(Strict):
    format: Literal["torchsplit.partition_request"]
    version: Literal[1]
    nodes: list[PartitionNodeFile]
    edges: list[EdgeFile]
    devices: DevicesFile
    contiguous: bool = True
    top_k: Count = 5
    solver: SolverFile = SolverFile()
    objective: Literal["throughput", "latency"] = "throughput"


class CandidateFile(Strict):
    stages: list[list[str]]
    loads_ms: list[NonNegative]
    max_load_ms: NonNegative
    cut_bytes: list[Whole]
    peak_memory_bytes: list[Whole]
    basis: Basis = "estimated"
    latency_ms: NonNegative | None = None
    devices: list[Whole] = []
    times_ms: dict[Annotated[int, Field(ge=1, strict=False)], list[NonNegative]] = {}
    batch_sensitivity: list[Finite | None] = []
    weight_bytes: list[Whole] = []


class PartitionOutcomeFile(Strict):
    format: Literal["torchsplit.partition"]
    version: Literal[1]
    status: Literal["optimal", "feasible", "infeasible", "timeout"]
    candidates: list[CandidateFile]
    bound_ms: NonNegative | None
    gap: NonNegative | None
    message: str = ""
    source: str = ""
    architecture_hash: str = ""
    statistics: dict[str, Any] = {}
    devices: DevicesFile | None = None
    objective: Literal["throughput", "latency"] = "throughput"
