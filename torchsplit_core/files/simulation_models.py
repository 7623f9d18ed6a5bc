"""Simulation requests and outcomes as strict pydantic models, field for field as docs/file-formats.md has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torchsplit_core.files.fields import (
    Amount,
    Count,
    Divisor,
    Facts,
    Finite,
    Name,
    NonNegative,
    Rows,
    Strict,
    Table,
    Whole,
)

Spread = Annotated[float, Field(ge=1e-3, le=100, allow_inf_nan=False)]
SpreadOrNone = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Percentile = Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)]
BatchSize = Annotated[int, Field(ge=1, le=2**53, strict=False)]


class PoissonArrivalsFile(Strict):
    kind: Literal["poisson"]
    rate_rps: Divisor


class DeterministicArrivalsFile(Strict):
    kind: Literal["deterministic"]
    rate_rps: Divisor


class GammaArrivalsFile(Strict):
    kind: Literal["gamma"]
    rate_rps: Divisor
    cv: Spread


class RateStateFile(Strict):
    rate_rps: Amount
    mean_s: Divisor


class MmppArrivalsFile(Strict):
    kind: Literal["mmpp"]
    states: Annotated[Rows[RateStateFile], Field(min_length=1)]


class TraceArrivalsFile(Strict):
    kind: Literal["trace"]
    times_s: Annotated[Rows[NonNegative], Field(min_length=1)]


ArrivalsFile = Annotated[
    PoissonArrivalsFile
    | DeterministicArrivalsFile
    | GammaArrivalsFile
    | MmppArrivalsFile
    | TraceArrivalsFile,
    Field(discriminator="kind"),
]


class SimulatedModelFile(Strict):
    name: Name
    stages: Annotated[Rows[Name], Field(min_length=1)]
    transfer_ms: Rows[Amount] = []
    slo_ms: Divisor | None = None
    arrivals: ArrivalsFile
    cut_bytes: Rows[Amount] = []
    cut_bytes_per_request: Rows[Amount] = []
    front_ms: Amount = 0.0


class ServiceFile(Strict):
    kind: Literal["deterministic", "exponential", "lognormal"] = "deterministic"
    cv: Spread | None = None


class PaceFile(Strict):
    cv: SpreadOrNone
    seconds: Divisor
    drift_cv: SpreadOrNone


class ServerFile(Strict):
    id: Name
    model: Name
    stage: Name
    count: Count = 1
    max_batch: Count
    max_wait_ms: Amount = 0.0
    batch_ms: Annotated[Table[BatchSize, Divisor], Field(min_length=1)]
    service: ServiceFile = ServiceFile()
    pace: PaceFile | None = None


class FindFile(Strict):
    percentile: Percentile = 95.0


class SimulationRequestFile(Strict):
    format: Literal["torchsplit.simulation_request"]
    version: Literal[1]
    models: Annotated[Rows[SimulatedModelFile], Field(min_length=1)]
    servers: Annotated[Rows[ServerFile], Field(min_length=1)]
    queue: Literal["shared", "per_server"] = "shared"
    requests_per_model: Count = 100_000
    warmup_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.1
    replications: Count = 5
    seed: Whole = 0
    find: FindFile | None = None


class ResponseTimesFile(Strict):
    mean: NonNegative | None
    p50: NonNegative | None
    p95: NonNegative | None
    p99: NonNegative | None
    max: NonNegative | None


class HalfWidthsFile(Strict):
    mean: NonNegative | None
    p50: NonNegative | None
    p95: NonNegative | None
    p99: NonNegative | None


class WaitTimesFile(Strict):
    mean: NonNegative | None


class ModelLoadFile(Strict):
    name: Name
    offered_rps: NonNegative | None
    capacity_rps: NonNegative
    stable: bool | None
    completed: Whole
    throughput_rps: NonNegative
    response_ms: ResponseTimesFile
    response_ci95_ms: HalfWidthsFile
    wait_ms: WaitTimesFile
    slo_attainment: NonNegative | None
    mean_batch: NonNegative
    bytes_across_cuts_per_s: NonNegative | None = None
    response_low_ms: ResponseTimesFile | None = None
    response_high_ms: ResponseTimesFile | None = None


class ServerLoadFile(Strict):
    id: Name
    utilisation: NonNegative
    mean_batch: NonNegative | None


class HighestLoadFile(Strict):
    percentile: Finite
    factor: NonNegative | None
    low: NonNegative | None
    high: NonNegative | None
    message: str = ""


class SimulationOutcomeFile(Strict):
    format: Literal["torchsplit.simulation"]
    version: Literal[1]
    models: Rows[ModelLoadFile]
    servers: Rows[ServerLoadFile]
    highest_load: HighestLoadFile | None = None
    warnings: Rows[str] = []
    statistics: Facts = {}
