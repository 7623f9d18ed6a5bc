"""What a simulation answers: rates, response times and their intervals, how busy every server was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Milliseconds; None where they are not given. `p50` is the nearest rank: the ⌈0.5·n⌉-th smallest."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True)
class HalfWidths:
    """Half-widths of 95 % intervals over the replications, milliseconds; None with one replication."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """Milliseconds that a request spends in queues, all stages together."""

    mean: float | None = None


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model under load. Figures are means over the replications, `max` their largest, `completed` their sum.

    `offered_rps` and `stable` None: a trace of one arrival has no rate. `slo_attainment` is the share of
    responses within slo_ms. `bytes_across_cuts_per_s` None: not cut, or the bytes are not known. Where the speed of
    servers is drawn, 90 % of the replications lie between `response_low_ms` and `response_high_ms`.
    """

    name: str
    offered_rps: float | None
    capacity_rps: float
    stable: bool | None
    completed: int
    throughput_rps: float
    response_ms: ResponseTimes
    response_ci95_ms: HalfWidths
    wait_ms: WaitTimes
    slo_attainment: float | None
    mean_batch: float
    bytes_across_cuts_per_s: float | None = None
    response_low_ms: ResponseTimes | None = None
    response_high_ms: ResponseTimes | None = None


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One entry of the request's servers, all `count` of it together. `mean_batch` None: it never worked."""

    id: str
    utilisation: float
    mean_batch: float | None


@dataclass(frozen=True, slots=True)
class HighestLoad:
    """At `low` times all rates every limit held, at `high` times one did not; `factor` is `low`.

    `factor` None: no factor that was tried holds (`low` None), or every one does (`high` None).
    """

    percentile: float
    factor: float | None
    low: float | None
    high: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The answer. `warnings` say what a reader of the figures must know."""

    models: tuple[ModelLoad, ...]
    servers: tuple[ServerLoad, ...]
    highest_load: HighestLoad | None = None
    warnings: tuple[str, ...] = ()
    statistics: Mapping[str, str | int | float] = field(default_factory=dict)
