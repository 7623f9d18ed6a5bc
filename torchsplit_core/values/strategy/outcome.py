"""What a search for a training strategy answers: candidates, best first, and what was refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from torchsplit_core.values.profile import Basis
from torchsplit_core.values.status import SolveStatus
from torchsplit_core.values.training import Offload, ParallelConfig, Recompute, Shard


@dataclass(frozen=True, slots=True)
class StrategyMemory:
    """GiB at the peak of the fullest device; `reserve` (context, libraries) is within the total too."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    communication: float
    reserve: float
    total: float


@dataclass(frozen=True, slots=True)
class StrategyParts:
    """Seconds of a step; the parts add up to it.

    `compute` has the host's share, `tensor_communication` exchanges of context and expert parallelism too,
    `data_communication` the gathers of sharded weights, `optimizer` what a step takes whatever its size.
    """

    compute: float
    tensor_communication: float
    pipeline_bubble: float
    pipeline_communication: float
    data_communication: float
    optimizer: float


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

    fleet: int
    type: str
    devices: int
    stages: int
    data: int
    tensor: int
    context: int
    expert: int
    micro_batch: int
    interleave: int
    shard: Shard
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload
    start_layer: int
    end_layer: int
    layers_per_stage: tuple[int, ...]
    sequences: int
    batch_per_device: int
    memory_gib: float
    seconds: float
    memory_gib_per_stage: tuple[float, ...] = ()
    seconds_per_stage: tuple[float, ...] = ()
    group: int = 0


@dataclass(frozen=True, slots=True)
class StrategyCandidate:
    """One way to train with what it takes. `batch_per_device`: sequences of a step for each data-parallel device.

    `tokens_per_s` and `samples_per_s` are the whole fleet's; `mfu` is the share of the peak FLOP/s that the model's
    own operations come to. `stages`: of a fleet of several entries, what each does; the choices are then those of the
    entry that takes longest, in a pipeline across entries but for `pipeline`, which counts the stages of all.
    `not_exportable`: why no file is written for it.
    """

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    micro_batch: int
    interleave: int
    shard: Shard
    recompute: Recompute
    sequence_parallel: bool
    offload: Offload
    micro_batches: int
    batch_per_device: int
    seconds_per_step: float
    low_s: float
    high_s: float
    tokens_per_s: float
    samples_per_s: float
    mfu: float
    memory_gib: StrategyMemory
    fits: bool
    parts_s: StrategyParts
    basis: Basis = "estimated"
    devices: int = 0
    stages: tuple[StrategyStage, ...] = ()
    not_exportable: str | None = None

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
    count: int
    nearest: str | None = None
    missing_gib: float | None = None


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """Candidates, fastest first. `considered`: choices that were told good or not, the refused ones included.

    Before the fastest stand those that can be exported and trained and whose seconds lie in its interval.
    optimal: no choice of the space is faster than the fastest; feasible: `bound_s`, seconds below which no choice
    comes, is less than the fastest's; infeasible is proven, and `message` says what is missing.
    """

    status: SolveStatus
    candidates: tuple[StrategyCandidate, ...]
    considered: int
    refused: tuple[StrategyRefusal, ...]
    message: str
    bound_s: float | None = None
    statistics: Mapping[str, str | int | float] = field(default_factory=dict)
