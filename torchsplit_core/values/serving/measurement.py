"""A served plan under load: what was predicted, simulated and measured, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Count,
    Divisor,
    FileField,
    Name,
    NonNegative,
    PercentileRank,
    Required,
    Whole,
)
from torchsplit_core.values.hardware import WHOLE_GPU
from torchsplit_core.values.plan.llm import TokenFigure

DeviationSource = Literal["service", "wait", "front", "load"]
"""What a disagreement is in: batches that take another time, queues, the way through the front, or the load sent."""


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Milliseconds; None where nothing was answered, or the simulation gives none."""

    p50: Required[NonNegative | None] = None
    p95: Required[NonNegative | None] = None
    p99: Required[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model. `offered_rps`: requests sent / duration. `predicted_rps`: the plan's throughput, at most that.

    `measured_rps`: answers / time until the last. `measured_ms` at the client, from when a request was due, and
    `simulated_ms` of the same arrivals, the way through the front (`hop_ms`, measured at start) in it. `errors`:
    requests without an answer of status 200, in `statuses` by status (0: no answer). `replayed_ms`: the simulation
    once more, with the times that this run's batches took. 90 % of the simulation's runs lie between `simulated_low_ms`
    and `simulated_high_ms`; None where no speed was drawn.

    Of an LLM the responses are to the last token, and it has times to the first token and for each further one, by the
    limited `percentile`: predicted by the simulation of the same arrivals and lengths, else by the plan's points, and
    measured at the client. They are None of a batch model, and where nothing is known.
    """

    name: Name
    offered_rps: NonNegative
    predicted_rps: NonNegative
    measured_rps: NonNegative
    simulated_ms: MeasuredTimes
    measured_ms: MeasuredTimes
    hop_ms: NonNegative
    errors: Whole
    statuses: tuple[tuple[Whole, Whole], ...] = ()
    replayed_ms: Added[MeasuredTimes] = MeasuredTimes()
    simulated_low_ms: Added[MeasuredTimes | None] = None
    simulated_high_ms: Added[MeasuredTimes | None] = None
    percentile: Added[PercentileRank | None] = None
    predicted_ttft_ms: Added[TokenFigure | None] = None
    measured_ttft_ms: Added[TokenFigure | None] = None
    predicted_tpot_ms: Added[TokenFigure | None] = None
    measured_tpot_ms: Added[TokenFigure | None] = None


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """One tenant of a slice, all its processes together; `id` is that of the plan's simulation.

    `planned_batch_ms`: what the plan's points say for batches of the sizes that came, hand-over and all; `batch_ms`:
    what they took (means); of an engine of an LLM its steps. Utilisations are shares of the run's time. None: no batch
    came, or nothing was simulated.
    """

    id: Name
    model: Name
    stage: Name
    planned_batch_ms: Annotated[NonNegative | None, FileField(default=(None,))]
    batch_ms: Annotated[NonNegative | None, FileField(default=(None,))]
    simulated_utilisation: Annotated[NonNegative | None, FileField(default=(None,))]
    utilisation: NonNegative
    simulated_batch: Annotated[NonNegative | None, FileField(default=(None,))]
    mean_batch: Annotated[NonNegative | None, FileField(default=(None,))]
    wait_ms: Annotated[NonNegative | None, FileField(default=(None,))]


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A point of the request as measured while serving: batches of that size on that slice. Values as in `Point`."""

    model: Name
    variant: Name
    stage: Name
    gpu_type: Name
    profile: Annotated[str, FileField(null=WHOLE_GPU)]
    batch_size: Count
    processes: Count
    throughput_rps: NonNegative
    latency_ms: NonNegative
    low_rps: NonNegative
    high_rps: NonNegative
    batches: Count


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where measured and predicted part by more than is usual, in a sentence; `server` None: not of one slice."""

    model: Name
    where: DeviationSource
    message: str
    server: Name | None = None
    stage: Name | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The outcome of `measure`. `host` says what it ran on; `stand_in` whether that is what the plan is of.

    `in_place`: models that another ran for, by name and source; none of `points` is theirs.
    """

    request_sha256: str
    duration_s: Divisor
    load: Divisor
    host: str
    models: tuple[MeasuredModel, ...]
    servers: tuple[MeasuredServer, ...] = ()
    points: tuple[MeasuredPoint, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    stand_in: Literal["none", "cpu", "sm"] = "none"
    warnings: tuple[str, ...] = ()
    in_place: Added[Mapping[Name, str]] = field(default_factory=dict)
