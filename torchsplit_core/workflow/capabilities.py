"""Table of which strategies an exported file or a training run can execute, and which features each supports."""

from __future__ import annotations

from torchsplit_core.strategy.supported import ModelTraits, Runner, refusals
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunStrategy
from torchsplit_core.values.training import ParallelConfig, Precision, TrainingJob

COMBINATIONS: dict[str, tuple[ParallelConfig, Precision]] = {
    "data": (ParallelConfig(4), "fp32"),
    "data, shard zero1": (ParallelConfig(4, shard="zero1"), "fp32"),
    "data, shard zero2": (ParallelConfig(4, shard="zero2"), "fp32"),
    "data, shard fsdp": (ParallelConfig(4, shard="fsdp"), "fp32"),
    "data, shard hsdp": (ParallelConfig(4, shard="hsdp"), "fp32"),
    "tensor": (ParallelConfig(tensor=2), "fp32"),
    "tensor, data": (ParallelConfig(2, 2), "fp32"),
    "tensor, shard zero1": (ParallelConfig(2, 2, shard="zero1"), "fp32"),
    "tensor, shard zero2": (ParallelConfig(2, 2, shard="zero2"), "fp32"),
    "tensor, shard fsdp": (ParallelConfig(2, 2, shard="fsdp"), "fp32"),
    "tensor, shard hsdp": (ParallelConfig(2, 2, shard="hsdp"), "fp32"),
    "tensor, pipeline": (ParallelConfig(1, 2, 2), "fp32"),
    "pipeline, data": (ParallelConfig(2, 1, 2), "fp32"),
    "pipeline, shard zero1": (ParallelConfig(2, 1, 2, shard="zero1"), "fp32"),
    "pipeline, shard zero2": (ParallelConfig(2, 1, 2, shard="zero2"), "fp32"),
    "pipeline, shard fsdp": (ParallelConfig(2, 1, 2, shard="fsdp"), "fp32"),
    "pipeline, shard hsdp": (ParallelConfig(2, 1, 2, shard="hsdp"), "fp32"),
    "pipeline, interleave": (ParallelConfig(2, 1, 2, interleave=2), "fp32"),
    "context": (ParallelConfig(2, context=2), "fp32"),
    "context, pipeline": (ParallelConfig(1, 1, 2, 2), "fp32"),
    "expert": (ParallelConfig(4, expert=2), "fp32"),
    "expert, shard zero1": (ParallelConfig(4, expert=2, shard="zero1"), "fp32"),
    "expert, shard zero2": (ParallelConfig(4, expert=2, shard="zero2"), "fp32"),
    "expert, shard fsdp": (ParallelConfig(4, expert=2, shard="fsdp"), "fp32"),
    "expert, shard hsdp": (ParallelConfig(4, expert=2, shard="hsdp"), "fp32"),
    "expert, pipeline": (ParallelConfig(2, 1, 2, expert=2), "fp32"),
    "expert, pipeline, shard zero1": (ParallelConfig(2, 1, 2, expert=2, shard="zero1"), "fp32"),
    "expert, pipeline, shard fsdp": (ParallelConfig(2, 1, 2, expert=2, shard="fsdp"), "fp32"),
    "expert, pipeline, shard hsdp": (ParallelConfig(2, 1, 2, expert=2, shard="hsdp"), "fp32"),
    "expert, context": (ParallelConfig(2, context=2, expert=2), "fp32"),
    "expert, tensor": (ParallelConfig(2, 2, expert=2), "fp32"),
    "recompute selective": (ParallelConfig(2, recompute="selective"), "fp32"),
    "recompute full": (ParallelConfig(2, recompute="full"), "fp32"),
    "shard fsdp, offload parameters": (ParallelConfig(2, shard="fsdp", offload="parameters"), "fp32"),
    "pipeline, shard fsdp, offload parameters": (
        ParallelConfig(2, 1, 2, shard="fsdp", offload="parameters"),
        "fp32",
    ),
    "offload optimizer": (ParallelConfig(2, offload="optimizer"), "fp32"),
    "precision tf32": (ParallelConfig(2), "tf32"),
    "precision bf16": (ParallelConfig(2), "bf16"),
    "precision fp16": (ParallelConfig(2), "fp16"),
    "precision fp8": (ParallelConfig(2), "fp8"),
}
"""Choices by name, each on at most four devices."""


def capability_table(model: ModelTraits) -> str:
    """The table for a model, in Markdown, one row per combination."""
    lines = ["| choice | export | train | checkpoint | balance |", "|---|---|---|---|---|"]
    for name, (choices, precision) in COMBINATIONS.items():
        trained = not refusals(choices, precision, "train", model)
        columns = (
            _carried_out(choices, precision, "export", model),
            _carried_out(choices, precision, "train", model),
            "yes" if trained else "–",
            _balance(choices, precision) if trained else "–",
        )
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def _carried_out(choices: ParallelConfig, precision: Precision, runner: Runner, model: ModelTraits) -> str:
    reasons = refusals(choices, precision, runner, model)
    return f"no: {reasons[0].why}" if reasons else "yes"


def _balance(choices: ParallelConfig, precision: Precision) -> str:
    """What `train --balance` adapts to the measured speed of the ranks."""
    from torchsplit_core.training.rebalance.batch_balancer import check_balance

    try:
        check_balance(RunStrategy(choices, TrainingJob(8, precision)))
    except InputFault:
        return "no"
    return "layers" if choices.pipeline > 1 else "samples"
