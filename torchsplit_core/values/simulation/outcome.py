"""What a simulation answers: rates, response times and their intervals, how busy every server was."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchsplit_core.values.fields import Added, Facts, Finite, Name, NonNegative, Required, Whole


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Milliseconds; None where they are not given. `p50` is the nearest rank: the ⌈0.5·n⌉-th smallest."""

    mean: Required[NonNegative | None] = None
    p50: Required[NonNegative | None] = None
    p95: Required[NonNegative | None] = None
    p99: Required[NonNegative | None] = None
    max: Required[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class HalfWidths:
    """Half-widths of 95 % intervals over the replications, milliseconds; None with one replication."""

    mean: Required[NonNegative | None] = None
    p50: Required[NonNegative | None] = None
    p95: Required[NonNegative | None] = None
    p99: Required[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """Milliseconds that a request spends in queues, all stages together."""

    mean: Required[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model under load. Figures are means over the replications, `max` their largest, `completed` their sum.

    `offered_rps` and `stable` None: a trace of one arrival has no rate. `slo_attainment` is the share of
    responses within slo_ms. `bytes_across_cuts_per_s` None: not cut, or the bytes are not known. Where the speed of
    servers is drawn, 90 % of the replications lie between `response_low_ms` and `response_high_ms`.
    """

    name: Name
    offered_rps: NonNegative | None
    capacity_rps: NonNegative
    stable: bool | None
    completed: Whole
    throughput_rps: NonNegative
    response_ms: ResponseTimes
    response_ci95_ms: HalfWidths
    wait_ms: WaitTimes
    slo_attainment: NonNegative | None
    mean_batch: NonNegative
    bytes_across_cuts_per_s: NonNegative | None = None
    response_low_ms: Added[ResponseTimes | None] = None
    response_high_ms: Added[ResponseTimes | None] = None


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One entry of the request's servers, all `count` of it together. `mean_batch` None: it never worked."""

    id: Name
    utilisation: NonNegative
    mean_batch: NonNegative | None


@dataclass(frozen=True, slots=True)
class HighestLoad:
    """At `low` times all rates every limit held, at `high` times one did not; `factor` is `low`.

    `factor` None: no factor that was tried holds (`low` None), or every one does (`high` None).
    """

    percentile: Finite
    factor: NonNegative | None
    low: NonNegative | None
    high: NonNegative | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The answer. `warnings` say what a reader of the figures must know."""

    models: tuple[ModelLoad, ...]
    servers: tuple[ServerLoad, ...]
    highest_load: HighestLoad | None = None
    warnings: tuple[str, ...] = ()
    statistics: Facts = field(default_factory=dict)
