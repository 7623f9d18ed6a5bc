"""What a search for a training strategy answers: candidates, best first, and what was refused and why."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from torchsplit_core.values.fields import Added, Count, Facts, Name, NonNegative, Positive, Text, Whole
from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus
from torchsplit_core.values.training import Offload, ParallelConfig, Recompute, Shard


@dataclass(frozen=True, slots=True)
class StrategyMemory:
    """GiB at the peak of the fullest device; `reserve` (context, libraries) is within the total too."""

    weights: NonNegative
    gradients: NonNegative
    optimizer: NonNegative
    activations: NonNegative
    communication: NonNegative
    reserve: NonNegative
    total: NonNegative


@dataclass(frozen=True, slots=True)
class StrategyParts:
    """Seconds of a step; the parts add up to it.

    `compute` has the host's share, `tensor_communication` exchanges of context and expert parallelism too,
    `data_communication` the gathers of sharded weights, `optimizer` what a step takes whatever its size.
    """

    compute: NonNegative
    tensor_communication: NonNegative
    pipeline_bubble: NonNegative
    pipeline_communication: NonNegative
    data_communication: NonNegative
    optimizer: NonNegative


@dataclass(frozen=True, slots=True)
class StrategyStage:
    """Of a fleet of several entries: what one of them does. `fleet`: its place, from 0.

    Its devices train copies of the layers `start_layer` to `end_layer` (from 1, both included) by choices of their
    own, in `stages` of `layers_per_stage` layers. `sequences`: of the step, its part; `batch_per_device`: those of
    each data-parallel device. `seconds`: of its own step, without the exchange with the others.

    In a pipeline across entries it has a part of the layers and all sequences, and `seconds` are those of its longest
    stage's micro-batches and of its longest end; only there `memory_gib_per_stage` and `seconds_per_stage`, of a
    micro-batch, are told. `group`, from 1: of entries beside each other, of which those of one group are a pipeline or
    copies, each group with its part of the sequences; 0: all entries are one.
    """

    fleet: Whole
    type: Name
    devices: Count
    stages: Count
    data: Count
    tensor: Count
    context: Count
    expert: Count
    micro_batch: Count
    interleave: Count
    shard: Shard
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload
    start_layer: Count
    end_layer: Count
    layers_per_stage: tuple[Count, ...]
    sequences: Count
    batch_per_device: Count
    memory_gib: NonNegative
    seconds: NonNegative
    memory_gib_per_stage: Added[tuple[NonNegative, ...]] = ()
    seconds_per_stage: Added[tuple[NonNegative, ...]] = ()
    group: Added[Whole] = 0


@dataclass(frozen=True, slots=True)
class StrategyCandidate:
    """One way to train with what it takes. `batch_per_device`: sequences of a step for each data-parallel device.

    `tokens_per_s` and `samples_per_s` are the whole fleet's; `mfu` is the share of the peak FLOP/s that the model's
    own operations come to. `stages`: of a fleet of several entries, what each does; the choices are then those of the
    entry that takes longest, in a pipeline across entries but for `pipeline`, which counts the stages of all.
    `not_exportable`: why no file is written for it.
    """

    data: Count
    tensor: Count
    pipeline: Count
    context: Count
    expert: Count
    micro_batch: Count
    interleave: Count
    shard: Shard
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload
    micro_batches: Count
    batch_per_device: Count
    seconds_per_step: Positive
    low_s: Positive
    high_s: Positive
    tokens_per_s: Positive
    samples_per_s: Positive
    mfu: NonNegative
    memory_gib: StrategyMemory
    fits: bool
    parts_s: StrategyParts
    basis: Basis = "estimated"
    devices: Whole = 0
    stages: tuple[StrategyStage, ...] = ()
    not_exportable: Added[str | None] = None

    @property
    def across(self) -> bool:
        """Whether it is one pipeline across entries of the fleet."""
        return any(stage.seconds_per_stage for stage in self.stages) and not self.beside

    @property
    def beside(self) -> bool:
        """Whether it is groups of entries beside each other, a pipeline across entries among them."""
        return any(stage.group for stage in self.stages)

    @property
    def choices(self) -> ParallelConfig:
        """The choices among what it says."""
        return ParallelConfig(
            **{option.name: getattr(self, option.name) for option in fields(ParallelConfig)}
        )


@dataclass(frozen=True, slots=True)
class StrategyRefusal:
    """Choices refused for one reason. `nearest`: the one that would need least to fit, in words.

    `missing_gib`: what it lacks on its fullest device.
    """

    reason: str
    count: Whole
    nearest: str | None = None
    missing_gib: NonNegative | None = None


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """A finished run on this host whose measured step calibrated the estimates.

    `run`: the name of its folder; `finished`: UTC, ISO 8601. `seconds`: the median of its steps of `global_batch`
    samples on `devices`; `estimated_s`: the estimate of that step without any measured one.
    """

    run: Text
    finished: Text
    global_batch: Count
    devices: Count
    seconds: Positive
    estimated_s: Positive
    basis: Basis = "measured"


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """Candidates, fastest first. `considered`: choices that were examined, the refused ones included.

    Before the fastest stand those that can be exported and trained and whose seconds lie in its interval.
    optimal: no choice of the space is faster than the fastest; feasible: `bound_s`, seconds below which no choice
    comes, is less than the fastest's; infeasible is proven, and `message` says what is missing.
    """

    status: SolveStatus
    candidates: tuple[StrategyCandidate, ...]
    considered: Whole
    refused: tuple[StrategyRefusal, ...]
    message: str
    bound_s: NonNegative | None = None
    statistics: Facts = field(default_factory=dict)
    calibrated_by: Added[tuple[CalibrationRun, ...]] = ()
