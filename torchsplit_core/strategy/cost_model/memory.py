"""Bytes at the peak of the fullest device: states, activations of the micro-batches in flight, buffers.

Activations of a layer follow Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models
(arXiv 2205.05198), in two-byte numbers: s·b·h·(10 + 24/t + 5·a·s/(h·t)) without sequence parallelism and
s·b·h·(34 + 5·a·s/h)/t with it; fused attention or selective recomputation removes the 5·a·s/h term.
"""

from __future__ import annotations

from torchsplit_core.strategy.cost_model.constants import Constants
from torchsplit_core.values.training import (
    ParallelConfig,
    StepMemory,
    TrainingJob,
    TrainingSoftware,
    Transformer,
)
from torchsplit_core.values.units import GIB

LOGIT_BYTES = 12
"""A logit in half and in single precision, and its gradient in both (2 + 4 + 4 + 2 bytes)."""
FUSED_LOGIT_BYTES = 6
"""A logit in half and in single precision; the gradients overwrite them."""


def layers_on(model: Transformer, choices: ParallelConfig) -> int:
    """Layers of the stage with the most."""
    return -(-model.layers // choices.pipeline)


def layer_weights(model: Transformer, choices: ParallelConfig, *, all_experts: bool = False) -> float:
    """Weights of a layer on one device of a tensor-parallel group, with its share of the experts."""
    experts = model.experts * model.expert_parameters if model.experts > 1 else 0
    dense = model.layer_parameters - experts
    return dense + experts / (1 if all_experts else choices.expert)


def device_parameters(model: Transformer, choices: ParallelConfig, *, all_experts: bool = False) -> float:
    """Weights of the fullest device before data-parallel sharding.

    `all_experts`: those of the whole expert-parallel group, which data-parallel sharding divides, since a device's own
    experts have only data / expert copies.
    """
    layer = layer_weights(model, choices, all_experts=all_experts)
    ends = model.vocab * model.hidden
    if choices.pipeline == 1 and not model.tied_embeddings:
        ends *= 2
    return (layers_on(model, choices) * layer + ends) / choices.tensor


def step_memory(
    model: Transformer,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    c: Constants,
    per_node: int = 8,
) -> StepMemory:
    """The parts of the peak. `per_node`: devices of a node, within which hsdp shards."""
    weights, gradients, optimizer, gathered = state_bytes(model, choices, job, software, per_node)
    activations = activation_bytes(model, choices, job, software) * c.fragmentation
    return StepMemory(weights, gradients, optimizer, activations, gathered, c.reserve_gib * GIB)


def state_bytes(
    model: Transformer,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    per_node: int = 8,
) -> tuple[float, float, float, float]:
    """Bytes of weights, gradients, optimizer states, and gathered sharded weights."""
    weights = device_parameters(model, choices)
    whole = weights if choices.expert == 1 else device_parameters(model, choices, all_experts=True)
    return stored_bytes(weights, whole, model, choices, job, software, per_node)


def stored_bytes(
    device_weights: float,
    whole: float,
    model: Transformer,
    choices: ParallelConfig,
    job: TrainingJob,
    software: TrainingSoftware,
    per_node: int = 8,
) -> tuple[float, float, float, float]:
    """`state_bytes` for a device that holds `device_weights`; `whole` counts all experts of its group."""
    group = choices.data * choices.context
    moments = 8 if job.optimizer == "adamw" else 4
    wide = job.precision in ("fp32", "tf32")
    if choices.shard in ("fsdp", "hsdp"):
        if choices.shard == "hsdp":
            # As in the estimate's network: the node's devices that remain beside tensor parallelism.
            group = min(group, max(1, per_node // choices.tensor))
        # Only master weights stay; the two-byte copy exists for the gathered layers alone.
        layer = model.layer_parameters / choices.tensor
        ends = model.vocab * model.hidden / choices.tensor
        width = 4 if wide else 2
        gathered = width * (2 * layer + ends) + software.gradient_bytes * max(layer, ends)
        if choices.pipeline > 1:
            # Schedules of several micro-batches keep the stage's weights and gradients gathered.
            gathered = (width + software.gradient_bytes) * device_weights
        return _offloaded(choices, 4 * whole / group, 4 * whole / group, moments * whole / group, gathered)
    if choices.shard == "zero1" and not wide and not software.sharded_masters:
        optimizer = moments * whole / group
        return _offloaded(
            choices, 6 * device_weights, software.gradient_bytes * device_weights, optimizer, 0.0
        )
    master = 0 if wide else 4
    weights = (4 if wide else 2) * device_weights
    gradients = software.gradient_bytes * (whole / group if choices.shard == "zero2" else device_weights)
    optimizer = (moments + master) * (
        whole / group if choices.shard in ("zero1", "zero2") else device_weights
    )
    return _offloaded(choices, weights, gradients, optimizer, 0.0)


def _offloaded(
    choices: ParallelConfig, weights: float, gradients: float, optimizer: float, gathered: float
) -> tuple[float, float, float, float]:
    if choices.offload == "optimizer":
        return weights, gradients, 0.0, gathered
    if choices.offload == "parameters":
        return 0.0, 0.0, 0.0, gathered
    return weights, gradients, optimizer, gathered


def in_flight(choices: ParallelConfig, micro_batches: int) -> float:
    """Micro-batches whose activations the first stage keeps: p, or p + (p − 1)/v with interleaving (v > 1)."""
    p, v = choices.pipeline, choices.interleave
    return min(micro_batches, p + ((p - 1) / v if v > 1 else 0))


def layer_activation_bytes(model: Transformer, choices: ParallelConfig, software: TrainingSoftware) -> float:
    """Bytes that a layer saves of one micro-batch for its backward pass, without recomputation."""
    t = choices.tensor
    tokens = choices.micro_batch * model.sequence / choices.context
    h = model.hidden
    inner: float
    if software.fused_layers and software.attention != "unfused":
        # No dropout, no masks: two norms, the attention's input, query, keys, values, result and sums, and the
        # feed-forward's input and products.
        around = 2 * (2 * h + 2 * h)
        width = 2 * (2 * h + 2 * model.kv_width)
        ffn = 2 * (3 if model.gated else 2) * model.ffn * model.experts_per_token
        inner = width + ffn
    else:
        around = 10 * h
        inner = 8 * h + 4 * model.ffn * model.experts_per_token * (1.5 if model.gated else 1)
    scores = 0.0
    if software.attention == "unfused" and choices.recompute != "selective":
        scores = 5 * model.heads * model.sequence
    return tokens * (around / (t if choices.sequence_parallel else 1) + (inner + scores) / t)


def activation_bytes(
    model: Transformer, choices: ParallelConfig, job: TrainingJob, software: TrainingSoftware
) -> float:
    """Bytes saved for the backward pass, the working memory of a recomputed layer, and the logits."""
    saved, working = saved_bytes(model, choices, software)
    per_rank = max(1, job.global_batch // (choices.data * choices.micro_batch))
    stage = layers_on(model, choices) * saved * in_flight(choices, per_rank)
    # The last stage holds the logits, the first the most micro-batches.
    last = layers_on(model, choices) * saved + logit_bytes(model, choices, software)
    return (max(stage, last) if choices.pipeline > 1 else last) + working


def logit_bytes(model: Transformer, choices: ParallelConfig, software: TrainingSoftware) -> float:
    """Bytes of a micro-batch's logits and their gradient."""
    tokens = choices.micro_batch * model.sequence / choices.context
    each = FUSED_LOGIT_BYTES if software.fused_loss else LOGIT_BYTES
    return each * tokens * model.vocab / choices.tensor


def saved_bytes(
    model: Transformer, choices: ParallelConfig, software: TrainingSoftware
) -> tuple[float, float]:
    """Bytes that a layer saves of a micro-batch, and the working memory of a recomputed layer."""
    t, tokens = choices.tensor, choices.micro_batch * model.sequence / choices.context
    whole = layer_activation_bytes(model, choices, software)
    if choices.recompute == "full":
        saved = 2 * tokens * model.hidden / (t if choices.sequence_parallel else 1)
    elif choices.recompute == "selective" and software.selective == "layers":
        share = software.selective_share
        saved = (1 - share) * whole + share * 2 * tokens * model.hidden
    elif choices.recompute == "selective" and software.selective == "matmuls":
        saved = 0.5 * whole
    else:
        saved = whole
    return saved, whole if choices.recompute == "full" else 0.0
