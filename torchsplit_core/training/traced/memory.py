"""Bytes at the peak of a stage's device in a step of a traced model.

States: four bytes a weight, its gradient and each moment, sharded as chosen; under autocast a copy of the weights in
half precision stays cached. Without accumulation the gradients are made while what was kept goes: the peak is the
fullest moment of the backward pass, part by part. With it (and in a pipeline) the gradients of earlier micro-batches
are there from the start.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.training.step.constants import Constants
from torchsplit_core.training.traced.model import PartFigures, TracedModel
from torchsplit_core.values.training import SHARDED, Choices, StepMemory, TrainingJob
from torchsplit_core.values.units import GIB

STATE_BYTES = 4.0
"""Of a weight, of its gradient and of each moment: single precision."""


def shards(choices: Choices, per_node: int) -> int:
    """Devices among which the states are sharded."""
    return min(choices.data, per_node) if choices.shard == "hsdp" else choices.data


def stage_memory(
    model: TracedModel,
    figures: Sequence[PartFigures],
    parts: range,
    choices: Choices,
    job: TrainingJob,
    in_flight: int,
    micro_batches: int,
    per_node: int,
    c: Constants,
    *,
    host: bool,
) -> StepMemory:
    """The peak on a device of the stage that has `parts`, with so many micro-batches in flight.

    `host`: a processor, whose allocator leaves no gaps that matter.
    """
    weights, gradients, optimizer, gathered = _states(model, parts, choices, job, per_node)
    alone = in_flight == micro_batches == 1 and choices.shard in ("none", "zero1")
    kept = {place: _kept(figures[place], choices) for place in parts}
    own = STATE_BYTES * sum(model.parameters[place] for place in parts)
    peak, made, held = 0.0, 0.0, in_flight * sum(kept.values())
    for place in reversed(parts):
        part = figures[place]
        if alone:
            made += STATE_BYTES * model.parameters[place]
        again = part.kept_within if choices.recompute != "none" else 0.0
        peak = max(peak, held + part.working + again - (own - made if alone else 0.0))
        held -= kept[place]
    gaps = 1.0 if host else c.fragmentation
    activations = max(0.0, peak) * gaps
    buffers = model.buffer_bytes
    if choices.offload == "parameters":
        weights = gradients = optimizer = 0.0
    return StepMemory(weights + buffers, gradients, optimizer, activations, gathered, c.reserve_gib * GIB)


def _kept(part: PartFigures, choices: Choices) -> float:
    """What a part keeps of a micro-batch: with recomputation its block's inputs, and products where selective."""
    if choices.recompute == "none":
        return part.kept
    around = part.kept - part.kept_within
    if choices.recompute == "selective":
        return around + min(part.kept_within, part.boundary + part.kept_products)
    return around + min(part.kept_within, part.boundary)


def _states(
    model: TracedModel, parts: range, choices: Choices, job: TrainingJob, per_node: int
) -> tuple[float, float, float, float]:
    """Weights, gradients, optimizer states, and what is gathered of sharded weights."""
    own = sum(model.parameters[place] for place in parts)
    half = job.precision in ("bf16", "fp16")
    moments = (2 if job.optimizer == "adamw" else 1) * STATE_BYTES * own
    group = shards(choices, per_node)
    if choices.shard not in SHARDED:
        weights = (STATE_BYTES + (2.0 if half else 0.0)) * own
        return weights, STATE_BYTES * own, moments / (group if choices.shard == "zero1" else 1), 0.0
    width = 2.0 if half else STATE_BYTES
    blocks = [model.parameters[place] - model.around_parameters[place] for place in parts]
    root = sum(model.around_parameters[place] for place in parts)
    largest = max(*blocks, root)
    made = (width + STATE_BYTES) * largest
    if choices.pipeline > 1:
        gathered = (width + STATE_BYTES) * own
    elif choices.shard == "zero2":
        gathered = width * own + made
    else:
        # Two blocks at a time, the next one gathered ahead; what is around them stays.
        gathered = width * (sum(sorted(blocks)[-2:]) + root) + made
    state = STATE_BYTES * own / group
    return state, state, moments / group, gathered
