"""What a simulation answers: rates, response times and their intervals, how busy every server was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from torchsplit_core.values.fields import Added, Facts, FileField, Finite, Name, NonNegative, Required, Whole


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    """Milliseconds; None where they are not given. `p50` is the nearest rank: the ⌈0.5·n⌉-th smallest.

    `p90` is of engines alone.
    """

    mean: Required[NonNegative | None] = None
    p50: Required[NonNegative | None] = None
    p95: Required[NonNegative | None] = None
    p99: Required[NonNegative | None] = None
    max: Required[NonNegative | None] = None
    p90: Annotated[NonNegative | None, FileField(added=True, after="p50")] = None


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Milliseconds to or between tokens of requests; None where they are not given. Percentiles as of responses."""

    mean: Required[NonNegative | None] = None
    p50: Required[NonNegative | None] = None
    p90: Required[NonNegative | None] = None
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

    Of a model with engines alone: `ttft_ms` from arrival to the first token; `tpot_ms` (last - first) / (tokens - 1)
    of requests of at least two; `itl_ms` all gaps between tokens; `goodput` the share of requests that keep
    max_ttft_ms and max_tpot_ms both. Tokens/s are of all requests, from the first arrival to the last token.
    `preemptions` and `cut_requests` are sums over the replications; `mean_batch` is of sequences in a step.
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
    ttft_ms: Added[TokenTimes | None] = None
    ttft_ci95_ms: Added[HalfWidths | None] = None
    tpot_ms: Added[TokenTimes | None] = None
    tpot_ci95_ms: Added[HalfWidths | None] = None
    itl_ms: Added[TokenTimes | None] = None
    goodput: Added[NonNegative | None] = None
    prompt_tokens_per_s: Added[NonNegative | None] = None
    output_tokens_per_s: Added[NonNegative | None] = None
    preemptions: Added[Whole | None] = None
    cut_requests: Added[Whole | None] = None


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One entry of the request's servers, all `count` of it together. `mean_batch` None: it never worked.

    `kv_peak_blocks`: the most blocks that one engine of the entry held at once; None: no engine.
    """

    id: Name
    utilisation: NonNegative
    mean_batch: NonNegative | None
    kv_peak_blocks: Added[Whole | None] = None


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
