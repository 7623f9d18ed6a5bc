"""Measurements of served plans as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import Count, Divisor, Name, NonNegative, Rows, Strict, Table, Whole


class MeasuredTimesFile(Strict):
    p50: NonNegative | None
    p95: NonNegative | None
    p99: NonNegative | None


class MeasuredModelFile(Strict):
    name: Name
    offered_rps: NonNegative
    predicted_rps: NonNegative
    measured_rps: NonNegative
    simulated_ms: MeasuredTimesFile
    measured_ms: MeasuredTimesFile
    hop_ms: NonNegative
    errors: Whole
    statuses: Rows[Annotated[list[Whole], Field(min_length=2, max_length=2)]] = []
    replayed_ms: MeasuredTimesFile = MeasuredTimesFile(p50=None, p95=None, p99=None)
    simulated_low_ms: MeasuredTimesFile | None = None
    simulated_high_ms: MeasuredTimesFile | None = None


class MeasuredServerFile(Strict):
    id: Name
    model: Name
    stage: Name
    planned_batch_ms: NonNegative | None = None
    batch_ms: NonNegative | None = None
    simulated_utilisation: NonNegative | None = None
    utilisation: NonNegative
    simulated_batch: NonNegative | None = None
    mean_batch: NonNegative | None = None
    wait_ms: NonNegative | None = None


class MeasuredPointFile(Strict):
    model: Name
    variant: Name
    stage: Name
    gpu_type: Name
    profile: str | None
    batch_size: Count
    processes: Count
    throughput_rps: NonNegative
    latency_ms: NonNegative
    low_rps: NonNegative
    high_rps: NonNegative
    batches: Count


class DisagreementFile(Strict):
    model: Name
    where: Literal["service", "wait", "front", "load"]
    message: str
    server: Name | None = None
    stage: Name | None = None


class MeasurementFile(Strict):
    format: Literal["torchsplit.measurement"]
    version: Literal[1]
    request_sha256: str
    duration_s: Divisor
    load: Divisor
    host: str
    models: Rows[MeasuredModelFile]
    servers: Rows[MeasuredServerFile] = []
    points: Rows[MeasuredPointFile] = []
    disagreements: Rows[DisagreementFile] = []
    stand_in: Literal["none", "cpu", "sm"] = "none"
    warnings: Rows[str] = []
    in_place: Table[Name, str] = {}
