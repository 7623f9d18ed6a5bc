"""Bytes at the peak of a stage's device in a step of a traced model.

States: four bytes each for a weight, its gradient and each moment, sharded as chosen; autocast caches a copy of the
weights in half precision. Without accumulation the backward pass computes gradients while it frees saved values: the
peak is its fullest moment, part by part. With accumulation (and in a pipeline) the gradients of earlier micro-batches
exist from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.strategy.cost_model.constants import Constants
from torchsplit_core.strategy.graph_model.model import GraphCostModel, PartCosts
from torchsplit_core.values.training import SHARDED, ParallelConfig, StepMemory, TrainingJob
from torchsplit_core.values.units import GIB

STATE_BYTES = 4.0
"""Bytes of a weight, of its gradient and of each moment: single precision."""


def shards(choices: ParallelConfig, per_node: int) -> int:
    """Devices over which the states are sharded."""
    return min(choices.data, per_node) if choices.shard == "hsdp" else choices.data


def stage_memory(
    model: GraphCostModel,
    figures: Sequence[PartCosts],
    parts: range,
    choices: ParallelConfig,
    job: TrainingJob,
    in_flight: int,
    micro_batches: int,
    per_node: int,
    c: Constants,
    *,
    host: bool,
) -> StepMemory:
    """The peak on a device of the stage with `parts`, with `in_flight` micro-batches.

    `host`: a processor, whose allocator leaves no gaps that matter.
    """
    weights, gradients, optimizer, gathered = _states(model, parts, choices, job, per_node)
    alone = in_flight == micro_batches == 1 and choices.shard in ("none", "zero1")
    saved = {place: _saved(figures[place], choices) for place in parts}
    gradient_bytes = STATE_BYTES * sum(model.parameters[place] for place in parts)
    peak, made, live = 0.0, 0.0, in_flight * sum(saved.values())
    for place in reversed(parts):
        part = figures[place]
        if alone:
            made += STATE_BYTES * model.parameters[place]
        recompute = part.saved_within if choices.recompute != "none" else 0.0
        peak = max(peak, live + part.working + recompute - (gradient_bytes - made if alone else 0.0))
        live -= saved[place]
    gaps = 1.0 if host else c.fragmentation
    activations = max(0.0, peak) * gaps
    buffers = model.buffer_bytes
    if choices.offload == "parameters":
        weights = gradients = optimizer = 0.0
    return StepMemory(weights + buffers, gradients, optimizer, activations, gathered, c.reserve_gib * GIB)


def _saved(part: PartCosts, choices: ParallelConfig) -> float:
    """Bytes a part saves of a micro-batch: with recomputation its block's inputs, and products if selective."""
    if choices.recompute == "none":
        return part.saved
    around = part.saved - part.saved_within
    if choices.recompute == "selective":
        return around + min(part.saved_within, part.boundary + part.saved_products)
    return around + min(part.saved_within, part.boundary)


def _states(
    model: GraphCostModel, parts: range, choices: ParallelConfig, job: TrainingJob, per_node: int
) -> tuple[float, float, float, float]:
    """Bytes of weights, gradients, optimizer states, and gathered sharded weights."""
    parameters = sum(model.parameters[place] for place in parts)
    half = job.precision in ("bf16", "fp16")
    moments = (2 if job.optimizer == "adamw" else 1) * STATE_BYTES * parameters
    group = shards(choices, per_node)
    if choices.shard not in SHARDED:
        weights = (STATE_BYTES + (2.0 if half else 0.0)) * parameters
        return weights, STATE_BYTES * parameters, moments / (group if choices.shard == "zero1" else 1), 0.0
    width = 2.0 if half else STATE_BYTES
    blocks = [model.parameters[place] - model.around_parameters[place] for place in parts]
    root = sum(model.around_parameters[place] for place in parts)
    largest = max(*blocks, root)
    made = (width + STATE_BYTES) * largest
    if choices.pipeline > 1:
        gathered = (width + STATE_BYTES) * parameters
    elif choices.shard == "zero2":
        gathered = width * parameters + made
    else:
        # Two blocks at a time, since the next is gathered ahead; what is around them stays gathered.
        gathered = width * (sum(sorted(blocks)[-2:]) + root) + made
    state = STATE_BYTES * parameters / group
    return state, state, moments / group, gathered
