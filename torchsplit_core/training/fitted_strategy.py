"""The strategy that a run carries out: read from a file's value, checked, and fitted to the number of processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from torchsplit_core.strategy.supported import refusals
from torchsplit_core.training.rebalance.batch_balancer import check_balance
from torchsplit_core.training.sampling import check_shares
from torchsplit_core.values import InputFault, quoted
from torchsplit_core.values.strategy.communication import (
    CommunicationRequest,
    check_communication,
    parse_communication,
)
from torchsplit_core.values.strategy.outcome import StrategyCandidate, StrategyOutcome
from torchsplit_core.values.strategy.request import StrategyRequest
from torchsplit_core.values.strategy.run import PredictedStep, RunOptions, RunStrategy
from torchsplit_core.values.training import SHARDED, ParallelConfig, Precision, TrainingJob

COMMON_CHOICES = (
    "tensor",
    "context",
    "expert",
    "interleave",
    "shard",
    "recompute",
    "offload",
)
"""Choices that all kinds of nodes of a run share."""


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
        return _strategy_of_candidate(given, precision or "fp32")
    if isinstance(given, StrategyRequest):
        job = given.training
        config = ParallelConfig(**given.fix.given())  # type: ignore[arg-type]
        return RunStrategy(config, replace(job, precision=precision or job.precision))
    raise InputFault(
        "the strategy",
        f"is a {type(given).__name__}, neither a strategy nor a strategy request that fixes its choices",
        "Write one with: torchsplit strategy REQUEST -o S.json.",
    )


def communication_of(given: Any, option: CommunicationRequest | str | None) -> CommunicationRequest:
    """How gradients are exchanged: by the option if there is one, otherwise by the request, otherwise by choice.

    `given`: a file's value, `option` also as text. Raises InputFault for what cannot be.
    """
    if isinstance(option, str):
        return parse_communication(option)
    if option is None:
        option = given.communication if isinstance(given, StrategyRequest) else CommunicationRequest()
    return check_communication(option)


def _strategy_of_candidate(candidate: StrategyCandidate, precision: Precision) -> RunStrategy:
    """On several kinds of nodes one pipeline whose stages have equal choices, or copies on uneven parts of the batch.

    Raises InputFault if the kinds of nodes divide their work in other ways.
    """
    stages, choices = candidate.stages, candidate.choices
    predicted = PredictedStep(
        candidate.memory_gib.total,
        candidate.seconds_per_step,
        candidate.low_s,
        candidate.high_s,
        asdict(candidate.parts_s),
    )
    if len(stages) < 2:
        job = TrainingJob(candidate.batch_per_device * choices.data, precision)
        return RunStrategy(choices, job, predicted)
    sequences = stages[0].sequences if candidate.across else sum(stage.sequences for stage in stages)
    common = COMMON_CHOICES + (("data", "micro_batch") if candidate.across else ("stages",))
    alike = len({tuple(getattr(stage, name) for name in common) for stage in stages}) == 1
    copies = not candidate.across and choices.shard == "none" and choices.pipeline == choices.tensor == 1
    if candidate.beside or not alike or not (candidate.across or copies):
        raise InputFault(
            "the strategy",
            f"divides the work of its {len(stages)} kinds of nodes in different ways, but a run has one",
            "Find a strategy for one kind of node.",
        )
    job = TrainingJob(sequences, precision)
    if candidate.across:
        layers = tuple(count for stage in stages for count in stage.layers_per_stage)
        return RunStrategy(choices, job, predicted, layers)
    ranks = sum(stage.data for stage in stages)
    fitted = replace(choices, data=ranks, micro_batch=max(stage.micro_batch for stage in stages))
    shares = tuple(float(stage.batch_per_device) for stage in stages for _ in range(stage.data))
    return RunStrategy(fitted, job, predicted, shares=shares)


def fit_to_world_sizes(strategy: RunStrategy, options: RunOptions, counts: Iterable[int]) -> RunStrategy:
    """The strategy on the last of these numbers of processes. Raises InputFault if one of them cannot run it."""
    for processes in counts:
        fitted = fit_to_world_size(strategy, processes)
        check_options(fitted, options)
    return fitted


def check_options(strategy: RunStrategy, options: RunOptions) -> None:
    """Raises InputFault for shares that do not match the data ranks, a balance that cannot be measured, activations of
    stages that are to be offloaded, stages that are to be measured, and an exchange that the strategy does not make."""
    check_shares(options.shares or strategy.shares, strategy.choices.data)
    if options.offload_activations and strategy.choices.pipeline > 1:
        raise InputFault(
            "--offload-activations",
            f"is given, but the strategy has {strategy.choices.pipeline} stages, each a part of a traced model",
            "Leave it out, or fix pipeline to 1.",
        )
    if options.validation.every is not None and strategy.choices.pipeline > 1:
        raise InputFault(
            "--validate-every",
            f"is {options.validation.every}, but the strategy has {strategy.choices.pipeline} stages, traced in "
            "training mode",
            "Leave it out: the end of the run is measured all the same. Or fix pipeline to 1.",
        )
    if options.balance:
        check_balance(strategy)
    _check_exchange(strategy.choices, check_communication(options.communication))


def _check_exchange(choices: ParallelConfig, request: CommunicationRequest) -> None:
    """Raises InputFault for a fixed exchange of gradients where DDP does not exchange them."""
    if choices.shard in SHARDED:
        instead = ("shard", choices.shard)
    else:
        divided = [name for name in ("pipeline", "tensor", "expert") if getattr(choices, name) > 1]
        if not divided:
            return
        instead = (divided[0], getattr(choices, divided[0]))
    for name in ("hook", "bucket_mib"):
        if (value := getattr(request, name)) not in (None, "ddp"):
            raise InputFault(
                f"communication.{name}",
                f"is {value}, but with {instead[0]} {instead[1]} gradients are not exchanged by DDP",
                "Leave it out, or fix shard to none or zero1, and pipeline, tensor and expert to 1.",
            )


def fit_to_world_size(strategy: RunStrategy, processes: int) -> RunStrategy:
    """The strategy with as many data-parallel ranks as the processes allow; the global batch stays the same.

    The stages of a pipeline are reduced to the largest number that divides the processes. Raises InputFault if the
    processes are no multiple of those that hold one copy of the model, and for choices that no run carries out.
    """
    # The data ranks follow from the processes: what depends on them is checked below.
    _check_runnable(replace(strategy.choices, data=1), strategy.job.precision)
    choices = _reduce_stages(strategy.choices, processes)
    copy = f"tensor {choices.tensor}" + (f", context {choices.context}" if choices.context > 1 else "")
    replica_size = choices.tensor * choices.pipeline * choices.context
    if processes < 1 or processes % replica_size:
        raise InputFault(
            "--processes",
            f"is {processes}, not a multiple of the {replica_size} that hold a copy of the model ({copy})",
            f"Give {replica_size} or a multiple.",
        )
    data = processes // replica_size
    if data > strategy.job.global_batch:
        raise InputFault(
            "--processes",
            f"is {processes}: {data} data-parallel ranks for the {strategy.job.global_batch} samples of a step",
            f"Give at most {strategy.job.global_batch * replica_size}.",
        )
    # The expert degree must divide the ranks: ranks beyond a multiple of it would have no experts.
    fitted = replace(choices, data=data, expert=math.gcd(choices.expert, data * choices.context))
    _check_runnable(fitted, strategy.job.precision)
    same_stages = fitted.pipeline == strategy.choices.pipeline
    return replace(
        strategy,
        choices=fitted,
        predicted=strategy.predicted if fitted == strategy.choices else None,
        layers=strategy.layers if same_stages else (),
        shares=strategy.shares if len(strategy.shares) == fitted.data else (),
    )


def in_passes(strategy: RunStrategy, passes: int | None) -> RunStrategy:
    """The strategy with so many passes in a full step (None: as it is), whose samples stay.

    Raises InputFault if a rank has fewer samples than passes.
    """
    if passes is None:
        return strategy
    samples = -(-strategy.job.global_batch // strategy.choices.data)
    if passes > samples:
        raise InputFault(
            "--accumulate",
            f"is {passes}, but a rank has {samples} of the samples of a step",
            f"Give at most {samples}.",
        )
    choices = replace(strategy.choices, micro_batch=-(-samples // passes))
    return replace(
        strategy, choices=choices, predicted=strategy.predicted if choices == strategy.choices else None
    )


def _reduce_stages(choices: ParallelConfig, processes: int) -> ParallelConfig:
    stage_ranks = choices.tensor * choices.context
    stages = next(
        (count for count in range(choices.pipeline, 0, -1) if processes % (count * stage_ranks) == 0), 1
    )
    return replace(choices, pipeline=stages, interleave=choices.interleave if stages > 1 else 1)


def _check_runnable(choices: ParallelConfig, precision: Precision) -> None:
    """Raises InputFault for the first of the choices that no run carries out."""
    for refusal in refusals(choices, precision, "train"):
        value = refusal.value if isinstance(refusal.value, int) else quoted(refusal.value)
        raise InputFault(
            f"the strategy's {refusal.choice}",
            f"is {value}, which no run carries out: {refusal.why}",
            refusal.remedy,
        )
