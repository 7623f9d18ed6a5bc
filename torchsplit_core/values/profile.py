"""What a model costs on a device: the profile contract."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, get_args

from torchsplit_core.values.fields import (
    Added,
    Amount,
    Count,
    Divisor,
    FileField,
    Free,
    Name,
    NodeId,
    NonNegative,
    Range,
    Required,
    Whole,
)

Basis = Literal["measured", "emulated", "estimated"]
BASES: tuple[Basis, ...] = get_args(Basis)
"""The surest first."""
SpreadOrNone = Annotated[float, Range(ge=0, le=100)]
FailureReason = Literal["out_of_memory", "failed", "time_limit", "crashed", "device_lost"]


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of the runs in ms with its 90 % interval; an end is None where too few runs bound it."""

    value: NonNegative
    low: NonNegative | None = None
    high: NonNegative | None = None


@dataclass(frozen=True, slots=True)
class LatencyPercentiles:
    """Service time of one batch over the timed runs, in ms."""

    runs: Count
    p50: Percentile
    p95: Percentile
    p99: Percentile


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What a peak is made of, in GiB: weights, values alive at the peak, what an operation needs while it runs.

    `context` is what there is beside them: on a GPU the CUDA context; on a processor the rest of what the process
    holds (Python, torch, generated kernels, packed matrices), 0 if not measured.
    """

    weights: NonNegative
    activations: NonNegative
    transient: NonNegative
    context: Annotated[NonNegative, FileField(default=(0.0,))]
    basis: Literal["measured", "estimated"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How the speed of a device varies: two log-normal factors of a batch's time, both of mean 1.

    One is drawn anew each period, of `seconds` on average, with coefficient of variation `cv`; the other once a run
    (it drifts over minutes), with `drift_cv`.
    """

    cv: SpreadOrNone
    seconds: Divisor
    drift_cv: SpreadOrNone


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One way to run one stage: device, slice, batch size, processes, and what it gives.

    `profile` is None for a whole GPU without MIG or a CPU, "4c" for 4 cores of one. `low_rps` and `high_rps` bound
    the throughput (90 % interval); `memory_gib` is the peak of one instance. `device` is the key of
    `Profile.environment["devices"]` under which it was measured, None for what was not measured here.
    `sequence_length` are the tokens of each request, None where the example inputs are as the model gives them.
    `pace` None: the speed is constant, or was not observed.
    """

    stage: Name
    gpu_type: Name
    profile: Annotated[str | None, FileField(default=(None,))]
    batch_size: Count
    processes: Annotated[Count, FileField(default=(1,))]
    throughput_rps: Amount
    latency_ms: Amount
    low_rps: Annotated[Amount | None, FileField(default=(None,))]
    high_rps: Annotated[Amount | None, FileField(default=(None,))]
    memory_gib: Annotated[Amount | None, FileField(default=(None,))]
    basis: Basis
    device: Added[str | None] = None
    percentiles_ms: Added[LatencyPercentiles | None] = None
    memory_parts_gib: Added[MemoryParts | None] = None
    sequence_length: Added[Count | None] = None
    pace: Added[Pace | None] = None

    @property
    def batch_ms(self) -> float:
        """What a batch usually takes, in ms: the time behind `throughput_rps`, so of measured runs the mean.

        `latency_ms` is their 95th percentile, which on a busy machine is many times that.
        """
        if not self.throughput_rps:
            return self.latency_ms
        return 1000.0 * self.processes * self.batch_size / self.throughput_rps


NOT_TRIED = "Not tried"
"""How the message of a failure begins that was ruled out before it ran."""


@dataclass(frozen=True, slots=True)
class ProfileFailure:
    """A point that was tried and gave no figure, or that a smaller one rules out: never a row of zeros."""

    stage: Name
    gpu_type: Name
    profile: Annotated[str | None, FileField(default=(None,))]
    batch_size: Count
    processes: Annotated[Count, FileField(default=(1,))]
    reason: FailureReason
    message: str
    device: Added[str | None] = None
    sequence_length: Added[Count | None] = None

    @property
    def tried(self) -> bool:
        """Whether it ran; else a smaller batch size or the time there was ruled it out."""
        return not self.message.startswith(NOT_TRIED)


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """One operation over its timed runs at one batch size, in ms: average, standard deviation, least and most.

    They were taken with the clock read after every operation: shares come from the least, and no sum of them is
    the time of a run.
    """

    mean: NonNegative
    std: NonNegative
    min: NonNegative
    max: NonNegative


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """One node's share of the model's time (shares add up to 1) and its bytes at the traced batch.

    `time_shares` has the share by batch size where operations were timed at several; `times_ms` what was timed,
    by batch size, nothing where it was not.
    """

    id: NodeId
    time_share: NonNegative
    output_bytes: Whole
    peak_bytes: Whole
    time_shares: Added[Mapping[Annotated[int, Range(ge=1)], NonNegative]] = field(default_factory=dict)
    times_ms: Added[Mapping[Annotated[int, Range(ge=1)], NodeTimes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """Everything known of one model's cost; `environment` says where and with what it was measured.

    `name` is what requests call the model; empty for a name made of the source.
    """

    source: str
    architecture_hash: str
    environment: Free = field(default_factory=dict)
    rows: Required[tuple[ProfileRow, ...]] = ()
    nodes: tuple[NodeProfile, ...] = ()
    failures: Added[tuple[ProfileFailure, ...]] = ()
    name: Added[Literal[""] | Name] = ""


def sequence_lengths(profile: Profile) -> tuple[int | None, ...]:
    """The sequence lengths of a profile's rows, each once, the first row's first."""
    return tuple(dict.fromkeys(row.sequence_length for row in profile.rows))


def at_sequence_length(profile: Profile, length: int | None) -> Profile:
    """The profile with the rows and failures of one sequence length alone."""
    lengths = {row.sequence_length for row in profile.rows} | {
        item.sequence_length for item in profile.failures
    }
    if lengths <= {length}:
        return profile
    return replace(
        profile,
        rows=tuple(row for row in profile.rows if row.sequence_length == length),
        failures=tuple(item for item in profile.failures if item.sequence_length == length),
    )


def at_first_length(profile: Profile) -> Profile:
    """The rows and failures of the sequence length that the profile's first row has."""
    return at_sequence_length(profile, profile.rows[0].sequence_length) if profile.rows else profile


def stage_shares(
    nodes: Sequence[NodeProfile], stages: Sequence[Collection[str]], batch_size: int
) -> tuple[float, ...]:
    """Each stage's share of the time of all stages at a batch size; all 0 where no node of them takes time.

    A stage is a collection of node ids. The nodes' shares are those timed at the batch size, else at the
    timed one nearest in ratio.
    """
    timed = sorted({batch for node in nodes for batch in node.time_shares})
    nearest = min(timed, key=lambda b: (abs(math.log(b / batch_size)), b)) if timed else None
    share = {
        node.id: node.time_share if nearest is None else node.time_shares.get(nearest, node.time_share)
        for node in nodes
    }
    parts = [math.fsum(share.get(name, 0.0) for name in stage) for stage in stages]
    whole = math.fsum(parts)
    return tuple(part / whole for part in parts) if whole > 0 else (0.0,) * len(parts)
