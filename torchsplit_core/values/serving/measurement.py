"""A served plan under load: what was predicted, simulated and measured, and where they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

DeviationSource = Literal["service", "wait", "front", "load"]
"""What a disagreement is in: batches that take another time, queues, the way through the front, or the load sent."""


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Milliseconds; None where nothing was answered, or the simulation gives none."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One model. `offered_rps`: requests sent / duration. `predicted_rps`: the plan's throughput, at most that.

    `measured_rps`: answers / time until the last. `measured_ms` at the client, from when a request was due, and
    `simulated_ms` of the same arrivals, the way through the front (`hop_ms`, measured at start) in it. `errors`:
    requests without an answer of status 200, in `statuses` by status (0: no answer). `replayed_ms`: the simulation
    once more, with the times that this run's batches took. 90 % of the simulation's runs lie between `simulated_low_ms`
    and `simulated_high_ms`; None where no speed was drawn.
    """

    name: str
    offered_rps: float
    predicted_rps: float
    measured_rps: float
    simulated_ms: MeasuredTimes
    measured_ms: MeasuredTimes
    hop_ms: float
    errors: int
    statuses: tuple[tuple[int, int], ...] = ()
    replayed_ms: MeasuredTimes = MeasuredTimes()
    simulated_low_ms: MeasuredTimes | None = None
    simulated_high_ms: MeasuredTimes | None = None


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """One tenant of a slice, all its processes together; `id` is that of the plan's simulation.

    `planned_batch_ms`: what the plan's points say for batches of the sizes that came, hand-over and all; `batch_ms`:
    what they took (means). Utilisations are shares of the run's time. None: no batch came, or nothing was simulated.
    """

    id: str
    model: str
    stage: str
    planned_batch_ms: float | None
    batch_ms: float | None
    simulated_utilisation: float | None
    utilisation: float
    simulated_batch: float | None
    mean_batch: float | None
    wait_ms: float | None


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A point of the request as measured while serving: batches of that size on that slice. Values as in `Point`."""

    model: str
    variant: str
    stage: str
    gpu_type: str
    profile: str
    batch_size: int
    processes: int
    throughput_rps: float
    latency_ms: float
    low_rps: float
    high_rps: float
    batches: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Where measured and predicted part by more than is usual, in a sentence; `server` None: not of one slice."""

    model: str
    where: DeviationSource
    message: str
    server: str | None = None
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The outcome of `measure`. `host` says what it ran on; `stand_in` whether that is what the plan is of.

    `in_place`: models that another ran for, by name and source; none of `points` is theirs.
    """

    request_sha256: str
    duration_s: float
    load: float
    host: str
    models: tuple[MeasuredModel, ...]
    servers: tuple[MeasuredServer, ...] = ()
    points: tuple[MeasuredPoint, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    stand_in: Literal["none", "cpu", "sm"] = "none"
    warnings: tuple[str, ...] = ()
    in_place: Mapping[str, str] = field(default_factory=dict)
