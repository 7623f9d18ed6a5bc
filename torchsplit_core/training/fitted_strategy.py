"""A strategy's file as what a run does: the choices, brought to the processes that there are, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torchsplit_core.training.rebalance.batch_balancer import check_balance
from torchsplit_core.training.sampling import check_shares
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.values.strategy.run import PredictedStep, RunOptions, RunStrategy
from torchsplit_core.values.training import RUN_PRECISIONS, SHARDED, ParallelConfig, Precision, TrainingJob

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
"""Choices that the stages of a pipeline have in common."""


def run_strategy_of(given: Any, candidate: int = 1, precision: Precision | None = None) -> RunStrategy:
    """The strategy of a file's value: an outcome's candidate (from 1, best first), or what a request fixes.

    What a request leaves free is one, or none of it. An outcome does not say its precision: `precision`, else fp32.
    Raises InputFault for another value, or a candidate that is not there.
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
        predicted = PredictedStep(given.memory_gib.total, given.seconds_per_step)
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
    """Layers of each stage, of one pipeline across kinds of nodes whose choices are alike; none of any other.

    Raises InputFault for kinds of nodes that do different work.
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
    """The strategy on the last of these numbers of processes. Raises InputFault for what one of them could not run."""
    for processes in counts:
        fitted = fit_to_world_size(strategy, processes)
        check_options(fitted, options)
    return fitted


def check_options(strategy: RunStrategy, options: RunOptions) -> None:
    """Raises InputFault for shares that are not those of the data ranks, and a balance that cannot be seen."""
    check_shares(options.shares, strategy.choices.data)
    if options.balance:
        check_balance(strategy)


def fit_to_world_size(strategy: RunStrategy, processes: int) -> RunStrategy:
    """The strategy with as many data-parallel ranks as the processes allow; its global batch stays.

    A pipeline whose stages do not divide the processes has fewer: the most that do. Raises InputFault where the
    processes are no multiple of what holds one copy of the model, and for what is not run.
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
        raise _unsupported(
            "tensor",
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
    """Raises InputFault for choices that can be reckoned but are not run."""
    choices, job = strategy.choices, strategy.job
    for name in ("context", "expert"):
        if getattr(choices, name) != 1:
            raise _unsupported(
                name,
                f"is {getattr(choices, name)}, but runs divide by data, tensor, pipeline and shards alone",
                f"Fix {name} to 1.",
            )
    if choices.pipeline > 1:
        _check_pipeline(choices)
    elif choices.interleave > 1:
        raise _unsupported(
            "interleave",
            f"is {choices.interleave} without a pipeline whose stages it could divide",
            "Fix interleave to 1.",
        )
    if job.precision not in RUN_PRECISIONS:
        raise _unsupported(
            "precision",
            f"is {job.precision}, which runs do not support",
            "Choose fp32, tf32 or bf16: fp16 needs a scaled loss, fp8 other layers.",
        )
    if choices.offload == "optimizer":
        raise _unsupported(
            "offload",
            "is optimizer, but PyTorch moves weights, gradients and optimizer together",
            "Fix offload to parameters or none.",
        )
    if choices.offload == "parameters" and choices.shard not in SHARDED:
        raise _unsupported(
            "offload",
            f"is parameters, but shard {choices.shard} does not shard the weights",
            "Fix shard to fsdp.",
        )
    if choices.tensor > 1 and choices.shard in ("zero1", "hsdp"):
        raise _unsupported(
            "shard",
            f"is {choices.shard} beside tensor parallelism",
            "Fix shard to fsdp or none, or tensor to 1.",
        )


def _check_pipeline(choices: ParallelConfig) -> None:
    """Raises InputFault for what is not run beside a pipeline."""
    if choices.tensor > 1:
        raise _unsupported(
            "tensor",
            f"is {choices.tensor} beside a pipeline, whose traced stages have no modules to cut by tensors",
            "Fix tensor to 1, or pipeline to 1.",
        )
    if choices.shard == "hsdp":
        raise _unsupported(
            "shard", "is hsdp beside a pipeline", "Fix shard to none, zero1, zero2 or fsdp, or pipeline to 1."
        )
    if choices.offload != "none":
        raise _unsupported(
            "offload",
            f"is {choices.offload}, but the stages of a pipeline keep their weights on the device in all passes",
            "Fix offload to none, or pipeline to 1.",
        )


def _unsupported(name: str, problem: str, remedy: str) -> InputFault:
    return InputFault(f"the strategy's {name}", problem, remedy)
