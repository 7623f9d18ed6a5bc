"""A planned day simulated over a trace of demand: what clients see hour by hour, of the windows' plans, of the one plan
that holds all day, and of a rule that scales replicas by their load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Count,
    Name,
    NonEmpty,
    NonNegative,
    Positive,
    Range,
    Required,
    Sha256,
    Whole,
)
from torchsplit_core.values.profile import Basis

SideName = Literal["windows", "static", "rule"]
Share = Annotated[float, Range(ge=0, le=1)]
HourOfDay = Annotated[int, Range(ge=0, le=23)]


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """Replicas follow their load, as Kubernetes' HorizontalPodAutoscaler has it.

    ⌈load / (target · requests/s of a replica)⌉ replicas, at least one, where load / what runs differs from the target
    by more than `tolerance` of it; fewer only as many as every decision of the last `stabilisation_s` seconds asked
    for. A decision comes `lag_s` after the load changed.
    """

    target: Annotated[float, Range(gt=0, le=1)] = 0.7
    tolerance: Annotated[float, Range(ge=0, lt=1)] = 0.1
    stabilisation_s: NonNegative = 300.0
    lag_s: NonNegative = 60.0


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """Milliseconds from arrival to answer (of an LLM to the last token) of the requests that were answered."""

    p50: Required[NonNegative | None] = None
    p95: Required[NonNegative | None] = None
    p99: Required[NonNegative | None] = None


@dataclass(frozen=True, slots=True)
class ReplayShares:
    """The share of the requests that arrived, by where they arrived: all, while a change of the side was carried out
    and at other times. None: without a limit, and where none arrived."""

    all: Required[Share | None] = None
    in_transitions: Required[Share | None] = None
    outside: Required[Share | None] = None


@dataclass(frozen=True, slots=True)
class ReplayHour:
    """The requests of one model that arrived in an hour of the day (UTC).

    `known_s`: seconds in which the trace has a value; everything else is of them, None where it is 0. `offered_rps`:
    the trace's mean. `attainment`: the share within the model's limits; a request without an answer keeps none.
    `stable` False: more arrive than what runs can carry.
    """

    hour: HourOfDay
    known_s: NonNegative
    offered_rps: NonNegative | None
    response_ms: ReplayTimes
    p95_ci95_ms: NonNegative | None
    attainment: Share | None
    served_share: Share | None
    stable: bool | None


@dataclass(frozen=True, slots=True)
class ReplayModel:
    """One model through the day: means over the replications.

    arrived = served + lost + waiting, `waiting` at the end of the day. `simulated_requests`: those gone through one by
    one, of all replications; the others of a sampled day stand behind them. `utilisation`: of its servers, the share of
    the time in which they are open. `p95_ci95_ms`, `attainment_ci95`: half-widths of 95 % intervals over the
    replications; None with one. `overloaded_s`: seconds in which more arrive than what runs can carry.
    `ttft_ms`: of an LLM, arrival to first token.
    """

    name: Name
    max_response_ms: Positive | None
    arrived_requests: NonNegative
    served_requests: NonNegative
    lost_requests: NonNegative
    waiting_requests: NonNegative
    simulated_requests: Whole
    utilisation: NonNegative | None
    stable: bool | None
    overloaded_s: NonNegative
    response_ms: ReplayTimes
    p95_ci95_ms: NonNegative | None
    attainment: ReplayShares
    attainment_ci95: NonNegative | None
    hours: tuple[ReplayHour, ...]
    ttft_ms: Added[ReplayTimes | None] = None
    max_ttft_ms: Added[Positive | None] = None
    max_tpot_ms: Added[Positive | None] = None


@dataclass(frozen=True, slots=True)
class ReplaySide:
    """A way to serve the day. gpu_hours: GPUs in use × hours, the minutes of changes included; `most_gpus` at once.

    `transition_s`: seconds in which a change is carried out. `models` empty and the figures None: `message` says why
    there is nothing to simulate.
    """

    name: SideName
    gpu_hours: NonNegative | None
    most_gpus: Whole | None
    transition_s: NonNegative | None
    models: tuple[ReplayModel, ...] = ()
    message: Added[str | None] = None


@dataclass(frozen=True, slots=True)
class ReplayedTrace:
    """The day of the trace: from `first_s` seconds after midnight (UTC) a value every `step_s`; `holes` have none, of
    all models together. `requests`: what arrives by its rates."""

    first_s: Whole
    step_s: Count
    holes: Whole
    requests: NonNegative


@dataclass(frozen=True, slots=True)
class DayReplay:
    """The sides on the same trace with the same seeds. All times are simulated; `service_basis`: what the times of
    batches and steps are.

    `simulated_share`: of the requests of the trace those that a replication goes through one by one (1: all of
    them; None: none arrived), in the side with the fewest.
    """

    sides: NonEmpty[tuple[ReplaySide, ...]]
    trace: ReplayedTrace
    rule: ThresholdRule
    replications: Count
    seed: Whole
    simulated_share: Share | None
    service_basis: Basis | None
    basis: Literal["simulated"] = "simulated"
    warnings: tuple[str, ...] = ()
    request_sha256: Added[Sha256 | None] = None
