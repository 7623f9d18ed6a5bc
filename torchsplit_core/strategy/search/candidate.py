"""Converts a choice and its step to a candidate of the file contract."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torchsplit_core.strategy.search.machines import Machine
from torchsplit_core.values.strategy.outcome import (
    StrategyCandidate,
    StrategyMemory,
    StrategyParts,
    StrategyStage,
)
from torchsplit_core.values.training import (
    ParallelConfig,
    Precision,
    StepEstimate,
    StepMemory,
    StepParts,
    TrainingDevice,
    TrainingJob,
    Transformer,
)
from torchsplit_core.values.units import GIB


def candidate(
    model: Transformer, device: TrainingDevice, job: TrainingJob, choices: ParallelConfig, step: StepEstimate
) -> StrategyCandidate:
    """The candidate of a choice on equal devices."""
    return candidate_of(device, job, choices, step, step_flops(model, job.global_batch), model.sequence)


def candidate_of(
    device: TrainingDevice,
    job: TrainingJob,
    choices: ParallelConfig,
    step: StepEstimate,
    flops: float,
    tokens: int,
) -> StrategyCandidate:
    """The candidate of any model: `flops` are its own operations of the whole step, `tokens` those of a sequence."""
    peak = choices.devices * peak_flops(device, job.precision)
    return StrategyCandidate(
        **asdict(choices),
        micro_batches=step.micro_batches,
        batch_per_device=job.global_batch // choices.data,
        seconds_per_step=step.seconds,
        low_s=step.low_s,
        high_s=step.high_s,
        tokens_per_s=job.global_batch * tokens / step.seconds,
        samples_per_s=job.global_batch / step.seconds,
        mfu=flops / step.seconds / peak,
        memory_gib=memory_gib(step.memory),
        fits=step.fits,
        parts_s=strategy_parts(step.parts_s, step.seconds),
        devices=choices.devices,
    )


def stage_fields(choices: ParallelConfig) -> dict[str, Any]:
    """The choices as fields of a strategy's stage, whose `stages` are its pipeline stages."""
    fields = asdict(choices)
    stages = fields.pop("pipeline")
    return fields | {"stages": stages}


def copies_stage(
    machine: Machine, model: Transformer, choices: ParallelConfig, step: StepEstimate, sequences: int
) -> StrategyStage:
    """The stage of an entry that trains copies of the model on its part of the batch."""
    few, more = divmod(model.layers, choices.pipeline)
    return StrategyStage(
        fleet=machine.fleet,
        type=machine.type,
        devices=choices.devices,
        **stage_fields(choices),
        start_layer=1,
        end_layer=model.layers,
        layers_per_stage=tuple(few + (place < more) for place in range(choices.pipeline)),
        sequences=sequences,
        batch_per_device=sequences // choices.data,
        memory_gib=step.memory.total / GIB,
        seconds=step.seconds,
    )


def step_flops(model: Transformer, sequences: int) -> float:
    """The model's own operations of a step: 6 a weight and token, 12 · layers · hidden · sequence a token.

    PaLM's convention (arXiv 2204.02311, appendix B): attention counts in full, recomputation not. The input embedding
    is a lookup, not a product; only the chosen experts count.
    """
    idle = (model.experts - model.experts_per_token) * model.expert_parameters
    weights = model.layers * (model.layer_parameters - idle) + model.vocab * model.hidden
    token = 6.0 * weights + 12.0 * model.layers * model.hidden * model.sequence
    return token * model.sequence * sequences


def peak_flops(device: TrainingDevice, precision: Precision) -> float:
    """The catalogue's dense FLOP/s in that precision."""
    if precision == "fp8":
        return device.eight_bit_flops or device.half_flops
    return device.single_flops if precision in ("fp32", "tf32") else device.half_flops


def strategy_parts(step_parts: StepParts, seconds: float) -> StrategyParts:
    """The estimate's parts as those of the contract, scaled to `seconds`."""
    scale = seconds / step_parts.total
    return StrategyParts(
        compute=scale
        * (step_parts.compute + step_parts.attention + step_parts.memory_bound + step_parts.host),
        tensor_communication=scale * (step_parts.tensor_communication + step_parts.context_communication),
        # Rounding of the layers' sum can leave it just below 0.
        pipeline_bubble=scale * max(0.0, step_parts.pipeline_bubble),
        pipeline_communication=scale * step_parts.pipeline_communication,
        data_communication=scale * (step_parts.data_communication + step_parts.sharding_communication),
        optimizer=scale * (step_parts.optimizer + step_parts.fixed),
    )


def memory_gib(memory: StepMemory) -> StrategyMemory:
    """The parts of the memory in GiB."""
    return StrategyMemory(
        weights=memory.weights / GIB,
        gradients=memory.gradients / GIB,
        optimizer=memory.optimizer / GIB,
        activations=memory.activations / GIB,
        communication=memory.communication / GIB,
        reserve=memory.reserve / GIB,
        total=memory.total / GIB,
    )
