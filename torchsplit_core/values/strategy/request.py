"""What a search for a training strategy is asked: a model, a fleet, a job, choices that are fixed.

Bandwidths are GB/s (10^9 bytes), one direction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from torchsplit_core.values.fields import (
    Added,
    Amount,
    Count,
    Divisor,
    Length,
    Name,
    NonEmpty,
    Positive,
    Range,
    Text,
)
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.training import Offload, Recompute, Shard, Size, TrainingJob, Transformer

Choice = Literal[
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "micro_batch",
    "interleave",
    "shard",
    "recompute",
    "sequence_parallel",
    "offload",
    "precision",
]
Large = Annotated[int, Range(ge=1, le=2**31)]


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """A decoder's sizes as they were written down; `transformer()` checks them.

    Not `Transformer`, which checks itself: pydantic would take the InputFault of a `__post_init__` for a complaint
    of its own and lose its field and remedy.
    """

    layers: Annotated[int, Range(ge=1, le=10000)]
    hidden: Size
    heads: Size
    kv_heads: Size
    ffn: Size
    vocab: Large
    sequence: Large
    gated: bool = False
    experts: Annotated[int, Range(ge=1, le=10000)] = 1
    experts_per_token: Size = 1
    tied_embeddings: bool = True
    kind: Literal["transformer"] = "transformer"

    def transformer(self) -> Transformer:
        """The sizes as the estimate takes them. Raises InputFault for sizes that do not go together."""
        return Transformer(**{size.name: getattr(self, size.name) for size in fields(Transformer)})


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A training step of the model that was measured on one device of the fleet, without recomputation."""

    batch: Count
    seconds: Positive


@dataclass(frozen=True, slots=True)
class SourceSizes:
    """Any traced model: its source, the path of its profile, and up to three measured steps, which calibrate it.

    `calibrate_by_runs`: finished runs of the model on this host, on a device like the fleet's, calibrate it too.
    """

    source: Text
    profile: Text | None = None
    measured_steps: Added[Annotated[tuple[MeasuredStep, ...], Length(max_length=3)]] = ()
    calibrate_by_runs: Added[bool] = True
    kind: Literal["source"] = "source"


@dataclass(frozen=True, slots=True)
class StrategyNodes:
    """Equal nodes of a fleet. `type` is a GPU of the catalogue or `CPU-Nc`, a host of N cores.

    `inside_gb_per_s`: of a device to those of its node, one direction; `between_gb_per_s`: of a whole node to the
    others. None: the catalogue's. `host_memory_gib`: of a node's host, for what is offloaded; None: twice its GPUs'.
    """

    nodes: Annotated[int, Range(ge=1, le=100000)]
    gpus_per_node: Annotated[int, Range(ge=1, le=1024)]
    type: Name
    inside_gb_per_s: Amount | None = None
    between_gb_per_s: Amount | None = None
    host_memory_gib: Amount | None = None


@dataclass(frozen=True, slots=True)
class StrategyFix:
    """Choices that are given; None: free."""

    data: Added[Count | None] = None
    tensor: Added[Count | None] = None
    pipeline: Added[Count | None] = None
    context: Added[Count | None] = None
    expert: Added[Count | None] = None
    micro_batch: Added[Count | None] = None
    interleave: Added[Count | None] = None
    shard: Added[Shard | None] = None
    recompute: Added[Recompute | None] = None
    sequence_parallel: Added[bool | None] = None
    offload: Added[Offload | None] = None

    def given(self) -> dict[str, int | str | bool]:
        """Those that are fixed, by name."""
        return {
            option.name: value for option in fields(self) if (value := getattr(self, option.name)) is not None
        }


@dataclass(frozen=True, slots=True)
class StrategySolver:
    """Seconds in all."""

    time_limit_s: Divisor = 20.0


@dataclass(frozen=True, slots=True)
class StrategyRequest:
    """The whole question. `top_k`: candidates wanted.

    `may_need`: choices that candidates may have although a training run or an exported file does not carry them out
    yet. `communication`: how a run of the strategy exchanges its gradients; the search does not use it.
    """

    model: TransformerSizes | SourceSizes
    fleet: NonEmpty[tuple[StrategyNodes, ...]]
    training: TrainingJob
    fix: StrategyFix = field(default_factory=StrategyFix)
    top_k: Annotated[int, Range(ge=1, le=10000)] = 10
    solver: StrategySolver = field(default_factory=StrategySolver)
    may_need: Added[tuple[Choice, ...]] = ()
    communication: Added[CommunicationRequest] = field(default_factory=CommunicationRequest)
