"""The strategy that a run carries out: read from a file's value, checked, and fitted to the number of processes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from torchsplit_core.strategy.supported import unsupported_choices
from torchsplit_core.training.rebalance.batch_balancer import check_balance
from torchsplit_core.training.sampling import check_shares
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.values.strategy.run import PredictedStep, RunOptions, RunStrategy
from torchsplit_core.values.training import SHARDED, ParallelConfig, Precision, TrainingJob

COMMON_CHOICES = (
    "data",
    "tensor",
    "context",
    "expert",
    "micro_batch",
    "interleave",
    "shard",
    "recompute",
    "offload",
)
"""Choices that all stages of a pipeline share."""


def run_strategy_of(given: Any, candidate: int = 1, precision: Precision | None = None) -> RunStrategy:
    """The strategy of a file's value: a candidate of an outcome (from 1, best first), or a request's fixed choices.

    Choices that a request leaves free keep their defaults. An outcome has no precision: `precision`, or else fp32.
    Raises InputFault for any other value, and for a candidate that does not exist.
    """
    if isinstance(given, StrategyOutcome):
        if not 1 <= candidate <= len(given.candidates):
            if not given.candidates:
                raise InputFault("the strategy", f"has no candidates: {given.message}", "Find another one.")
            raise InputFault(
                "--candidate",
                f"is {candidate}, but the strategy has {len(given.candidates)} candidates",
                f"Give a number from 1, the best, to {len(given.candidates)}.",
            )
        given = given.candidates[candidate - 1]
    if isinstance(given, StrategyCandidate):
        predicted = PredictedStep(
            given.memory_gib.total, given.seconds_per_step, given.low_s, given.high_s, asdict(given.parts_s)
        )
        job = TrainingJob(given.batch_per_device * given.data, precision or "fp32")
        return RunStrategy(given.choices, job, predicted, _layers(given))
    if isinstance(given, StrategyRequest):
        job = given.training
        config = ParallelConfig(**given.fix.given())  # type: ignore[arg-type]
        return RunStrategy(config, replace(job, precision=precision or job.precision))
    raise InputFault(
        "the strategy",
        f"is a {type(given).__name__}, neither a strategy nor a strategy request that fixes its choices",
        "Write one with: torchsplit strategy REQUEST -o S.json.",
    )


def _layers(candidate: StrategyCandidate) -> tuple[int, ...]:
    """Layers of each stage of a pipeline across kinds of nodes with equal choices; empty on one kind of node.

    Raises InputFault if the kinds of nodes differ in their choices.
    """
    if not candidate.stages:
        return ()
    distinct = {tuple(getattr(stage, name) for name in COMMON_CHOICES) for stage in candidate.stages}
    if not candidate.across or len(distinct) > 1:
        raise InputFault(
            "the strategy",
            f"divides the work of its {len(candidate.stages)} kinds of nodes in different ways, but a run has one",
            "Find a strategy for one kind of node.",
        )
    return tuple(count for stage in candidate.stages for count in stage.layers_per_stage)


def fit_to_world_sizes(strategy: RunStrategy, options: RunOptions, counts: Iterable[int]) -> RunStrategy:
    """The strategy on the last of these numbers of processes. Raises InputFault if one of them cannot run it."""
    for processes in counts:
        fitted = fit_to_world_size(strategy, processes)
        check_options(fitted, options)
    return fitted


def check_options(strategy: RunStrategy, options: RunOptions) -> None:
    """Raises InputFault for shares that do not match the data ranks, and for a balance that cannot be measured."""
    check_shares(options.shares, strategy.choices.data)
    if options.balance:
        check_balance(strategy)


def fit_to_world_size(strategy: RunStrategy, processes: int) -> RunStrategy:
    """The strategy with as many data-parallel ranks as the processes allow; the global batch stays the same.

    The stages of a pipeline are reduced to the largest number that divides the processes. Raises InputFault if the
    processes are no multiple of those that hold one copy of the model, and for choices that no run carries out.
    """
    _check_runnable(strategy)
    choices = _reduce_stages(strategy.choices, processes)
    replica_size = choices.tensor * choices.pipeline * choices.context
    if processes < 1 or processes % replica_size:
        raise InputFault(
            "--processes",
            f"is {processes}, not a multiple of the {replica_size} that hold a copy of the model "
            f"(tensor {choices.tensor})",
            f"Give {replica_size} or a multiple.",
        )
    data = processes // replica_size
    if data > strategy.job.global_batch:
        raise InputFault(
            "--processes",
            f"is {processes}: {data} data-parallel ranks for the {strategy.job.global_batch} samples of a step",
            f"Give at most {strategy.job.global_batch * replica_size}.",
        )
    if choices.tensor > 1 and data > 1 and choices.shard not in SHARDED:
        raise InputFault(
            "the strategy's tensor",
            f"is {choices.tensor} with data {data}, but shard {choices.shard} does not shard the weights",
            "Fix shard to fsdp, or data to 1.",
        )
    fitted = replace(choices, data=data)
    same_stages = fitted.pipeline == strategy.choices.pipeline
    return replace(
        strategy,
        choices=fitted,
        predicted=strategy.predicted if fitted == strategy.choices else None,
        layers=strategy.layers if same_stages else (),
    )


def _reduce_stages(choices: ParallelConfig, processes: int) -> ParallelConfig:
    stages = next((count for count in range(choices.pipeline, 0, -1) if processes % count == 0), 1)
    return replace(choices, pipeline=stages, interleave=choices.interleave if stages > 1 else 1)


def _check_runnable(strategy: RunStrategy) -> None:
    """Raises InputFault for choices that the search can estimate, but no run carries out."""
    choices, precision = strategy.choices, strategy.job.precision
    unsupported = unsupported_choices(choices, precision)
    alone = "but runs divide by data, tensor, pipeline and shards alone"
    pipeline, sharded = choices.pipeline > 1, choices.shard in SHARDED
    rules = (
        ("context" in unsupported, "context", f"is {choices.context}, {alone}", "Fix context to 1."),
        ("expert" in unsupported, "expert", f"is {choices.expert}, {alone}", "Fix expert to 1."),
        (
            pipeline and choices.tensor > 1,
            "tensor",
            f"is {choices.tensor} beside a pipeline, whose traced stages have no modules to cut by tensors",
            "Fix tensor to 1, or pipeline to 1.",
        ),
        (
            pipeline and choices.shard == "hsdp",
            "shard",
            "is hsdp beside a pipeline",
            "Fix shard to none, zero1, zero2 or fsdp, or pipeline to 1.",
        ),
        (
            pipeline and choices.offload != "none",
            "offload",
            f"is {choices.offload}, but the stages of a pipeline keep their weights on the device in all passes",
            "Fix offload to none, or pipeline to 1.",
        ),
        (
            not pipeline and choices.interleave > 1,
            "interleave",
            f"is {choices.interleave} without a pipeline whose stages it could divide",
            "Fix interleave to 1.",
        ),
        (
            "precision" in unsupported,
            "precision",
            f"is {precision}, which runs do not support",
            "Choose fp32, tf32 or bf16: fp16 needs a scaled loss, fp8 other layers.",
        ),
        (
            "offload" in unsupported,
            "offload",
            "is optimizer, but PyTorch moves weights, gradients and optimizer together",
            "Fix offload to parameters or none.",
        ),
        (
            choices.offload == "parameters" and not sharded,
            "offload",
            f"is parameters, but shard {choices.shard} does not shard the weights",
            "Fix shard to fsdp.",
        ),
        (
            "shard" in unsupported or (choices.shard == "hsdp" and choices.tensor > 1),
            "shard",
            f"is {choices.shard} beside tensor parallelism",
            "Fix shard to fsdp or none, or tensor to 1.",
        ),
    )
    for broken, name, problem, remedy in rules:
        if broken:
            raise InputFault(f"the strategy's {name}", problem, remedy)
