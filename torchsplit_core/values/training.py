"""What a training step is estimated from: a transformer's sizes, a device, a cluster, the choices, the software.

Bandwidths count one direction (datasheets of NVLink count both). Names of the choices are those of the strategy
contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torchsplit_core.values.errors import InputFault
from torchsplit_core.values.fields import Range

Size = Annotated[int, Range(ge=1, le=2**20)]
"""Layers, experts, nodes and the like: sizes whose divisors are found in no time."""
Shard = Literal["none", "zero1", "zero2", "fsdp", "hsdp"]
Recompute = Literal["none", "selective", "full"]
Offload = Literal["none", "optimizer", "parameters"]
Attention = Literal["unfused", "triton", "flash", "cudnn"]
SelectiveKind = Literal["attention", "matmuls", "layers"]
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
RUN_PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
"""Those that a run can train in."""
SHARDED: tuple[Shard, ...] = ("zero2", "fsdp", "hsdp")
"""PyTorch's fully_shard: weights lie cut over the data-parallel devices and are gathered block by block. Its `zero2`
keeps them whole from the forward to the backward pass."""


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder of equal layers. `sequence` in tokens; `ffn` the width of one expert's feed-forward.

    `gated`: three matrices in the feed-forward, not two. `tied_embeddings`: one matrix for words in and out.
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

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "experts"):
            value = getattr(self, name)
            if value < 1:
                raise InputFault(f"model.{name}", f"is {value}, below the least value 1", "Give 1 or more.")
        if self.hidden % self.heads:
            raise InputFault(
                "model.heads",
                f"is {self.heads}, which does not divide the hidden size {self.hidden}",
                "Give a number of heads that divides it.",
            )
        if self.heads % self.kv_heads:
            raise InputFault(
                "model.kv_heads",
                f"is {self.kv_heads}, which does not divide the {self.heads} heads",
                "Give a number that divides them.",
            )
        if not 1 <= self.experts_per_token <= self.experts:
            limit = (
                "below the least value 1"
                if self.experts_per_token < 1
                else f"more than the model's {self.experts} experts"
            )
            raise InputFault(
                "model.experts_per_token",
                f"is {self.experts_per_token}, {limit}",
                f"Give a number from 1 to {self.experts}.",
            )

    @property
    def kv_width(self) -> int:
        """Columns of the keys (and of the values) of a layer."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def attention_parameters(self) -> int:
        """Weights of a layer's attention and norms."""
        return 2 * self.hidden * (self.hidden + self.kv_width) + 2 * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Weights of one feed-forward."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """Weights of a layer, all its experts."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        return self.attention_parameters + self.experts * self.expert_parameters + router

    @property
    def parameters(self) -> int:
        """Weights of the model; learned positions are left out."""
        words = (1 if self.tied_embeddings else 2) * self.vocab * self.hidden
        return self.layers * self.layer_parameters + words + self.hidden


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """How a step is divided: the size of each group of devices, sequences of a micro-batch, and what memory holds.

    `expert` devices of the data-parallel group hold the experts among them; `interleave` chunks of layers a stage.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    micro_batch: int = 1
    interleave: int = 1
    shard: Shard = "none"
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    offload: Offload = "none"

    @property
    def devices(self) -> int:
        """Devices that take part; `expert` is within `data`."""
        return self.data * self.tensor * self.pipeline * self.context


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """What is asked of a step: sequences in all, the numbers' format, the optimizer."""

    global_batch: Size
    precision: Precision = "bf16"
    optimizer: Literal["adamw", "sgd"] = "adamw"


@dataclass(frozen=True, slots=True)
class TrainingDevice:
    """A GPU: FLOP/s (dense) of half, eight-bit and single-precision products, bytes/s and bytes of its memory.

    `single_flops` is that of tf32 where the device has it. `power_share`: of the usual power limit. Without
    `multiprocessors` (a processor) products are not made in tiles, and lose nothing at their edges.
    """

    name: str
    generation: Generation
    half_flops: float
    eight_bit_flops: float
    single_flops: float
    bytes_per_s: float
    memory_bytes: float
    multiprocessors: int
    power_share: float = 1.0


@dataclass(frozen=True, slots=True)
class TrainingCluster:
    """Bytes/s one way: of a device to those of its node, of a whole node to the others, of a device to its host."""

    gpus_per_node: int
    inside_bytes_per_s: float
    between_bytes_per_s: float
    host_bytes_per_s: float = 25e9


@dataclass(frozen=True, slots=True)
class TrainingSoftware:
    """How a framework trains. `family` is its name in the table of measured errors.

    `compiled`: host time and element-wise operations as after a compiler or with a vendor's fused layers.
    `data_overlap`: gradients of data parallelism are sent while the backward pass runs. `selective`: what selective
    recomputation does again; `selective_share`: of the layers, where it is whole ones. `tensor_overlap`: exchanges of
    tensor parallelism and of an interleaved pipeline run beside products. `early_stop`: recomputation of a layer ends
    when the last tensor that the backward pass needs is there, before the layer's last product (PyTorch's
    checkpointing without re-entry, set_checkpoint_early_stop). `fused_loss`: the loss writes its gradient over the
    logits. `sequence_parallel`: tensor parallelism cuts norms and residuals too. `sharded_masters`: in half precision
    ZeRO-1 divides single-precision masters of two-byte weights; without, weights are in single precision on every
    device, and autocast keeps two-byte copies of them.
    """

    family: str
    attention: Attention = "flash"
    compiled: bool = False
    data_overlap: bool = True
    selective: SelectiveKind = "attention"
    selective_share: float = 0.5
    gradient_bytes: int = 4
    fused_layers: bool = False
    tensor_overlap: bool = False
    early_stop: bool = False
    fused_loss: bool = False
    sequence_parallel: bool = True
    sharded_masters: bool = True


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of a step; the parts add up to it. Recomputation is within `compute`, `attention`, `memory_bound`."""

    compute: float
    attention: float
    memory_bound: float
    host: float
    tensor_communication: float
    context_communication: float
    sharding_communication: float
    pipeline_communication: float
    pipeline_bubble: float
    data_communication: float
    optimizer: float
    fixed: float

    @property
    def total(self) -> float:
        """The step in seconds."""
        return (
            self.compute
            + self.attention
            + self.memory_bound
            + self.host
            + self.tensor_communication
            + self.context_communication
            + self.sharding_communication
            + self.pipeline_communication
            + self.pipeline_bubble
            + self.data_communication
            + self.optimizer
            + self.fixed
        )


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Bytes at the peak of the fullest device; the parts add up to it."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    communication: float
    reserve: float

    @property
    def total(self) -> float:
        """The peak in bytes."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.communication
            + self.reserve
        )


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """A step's seconds with their 90 % interval, its parts, the memory of the fullest device, and whether it fits."""

    seconds: float
    low_s: float
    high_s: float
    parts_s: StepParts
    memory: StepMemory
    micro_batches: int
    fits: bool
