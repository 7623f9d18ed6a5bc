"""What a search for a training strategy is asked: a model, a fleet, a job, choices that are fixed.

Bandwidths are GB/s (10^9 bytes), one direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from torchsplit_core.values.training import Offload, Precision, Recompute, Shard, TrainingJob, Transformer


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """A decoder's sizes as they were written down; `transformer()` checks them.

    Not `Transformer` itself, which checks when it is made: pydantic, which reads the union with `SourceSizes`, takes
    the InputFault of a `__post_init__` for a member that does not fit, and the user is told of an internal fault.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    sequence: int
    gated: bool = False
    experts: int = 1
    experts_per_token: int = 1
    tied_embeddings: bool = True
    kind: Literal["transformer"] = "transformer"

    def transformer(self) -> Transformer:
        """The sizes as the estimate takes them. Raises InputFault for sizes that do not go together."""
        return Transformer(**{size.name: getattr(self, size.name) for size in fields(Transformer)})


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A training step of the model that was measured on one device of the fleet, without recomputation."""

    batch: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """Any traced model: its source, the path of its profile, and up to three measured steps, which calibrate it."""

    source: str
    profile: str | None = None
    measured_steps: tuple[MeasuredStep, ...] = ()
    kind: Literal["source"] = "source"


@dataclass(frozen=True, slots=True)
class StrategyNodes:
    """Equal nodes of a fleet. `type` is a GPU of the catalogue or `CPU-Nc`, a host of N cores.

    `inside_gb_per_s`: of a device to those of its node, one direction; `between_gb_per_s`: of a whole node to the
    others. None: the catalogue's. `host_memory_gib`: of a node's host, for what is offloaded; None: twice its GPUs'.
    """

    nodes: int
    gpus_per_node: int
    type: str
    inside_gb_per_s: float | None = None
    between_gb_per_s: float | None = None
    host_memory_gib: float | None = None


@dataclass(frozen=True, slots=True)
class StrategyFix:
    """Choices that are given; None: free."""

    data: int | None = None
    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    micro_batch: int | None = None
    interleave: int | None = None
    shard: Shard | None = None
    recompute: Recompute | None = None
    sequence_parallel: bool | None = None
    offload: Offload | None = None

    def given(self) -> dict[str, int | str | bool]:
        """Those that are fixed, by name."""
        return {
            option.name: value for option in fields(self) if (value := getattr(self, option.name)) is not None
        }


@dataclass(frozen=True, slots=True)
class StrategySolver:
    """Seconds in all."""

    time_limit_s: float = 20.0


@dataclass(frozen=True, slots=True)
class StrategyTraining:
    """What is asked of a step: sequences in all, the numbers' format, the optimizer."""

    global_batch: int
    precision: Precision = "bf16"
    optimizer: Literal["adamw", "sgd"] = "adamw"

    def job(self) -> TrainingJob:
        """The same as the estimate takes it."""
        return TrainingJob(self.global_batch, self.precision, self.optimizer)


@dataclass(frozen=True, slots=True)
class StrategyRequest:
    """The whole question. `top_k`: candidates wanted."""

    model: TransformerSizes | SourceSizes
    fleet: tuple[StrategyNodes, ...]
    training: StrategyTraining
    fix: StrategyFix = field(default_factory=StrategyFix)
    top_k: int = 10
    solver: StrategySolver = field(default_factory=StrategySolver)
