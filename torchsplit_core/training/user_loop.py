"""A training run around the user's own training loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from torchsplit_core.files import read_file
from torchsplit_core.training.feeding.choice import is_stream
from torchsplit_core.training.fitted_strategy import (
    communication_of,
    fit_to_world_size,
    in_passes,
    run_strategy_of,
)
from torchsplit_core.training.held_out.evaluation import Metrics, held_out_of
from torchsplit_core.training.loop import TrainingRun
from torchsplit_core.training.process_group import join_process_group
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.strategy.held_out import ValidationOptions
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.strategy.updates import UpdateOptions
from torchsplit_core.values.training import ParallelConfig, TrainingJob

_FOLDER_LOCKS = ExitStack()
"""Locks of the folders that this process writes to, held until it ends."""


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    strategy: RunStrategy | str | Path | Any | None,
    folder: str | Path,
    *,
    steps: int | None = None,
    checkpoint_every: int = 50,
    keep: int = 2,
    shares: tuple[float, ...] = (),
    balance: bool = False,
    seed: int = 0,
    communication: CommunicationRequest | str | None = None,
    accumulate: int | None = None,
    clip_norm: float | None = None,
    scheduler: Any = None,
    validation: tuple[DataLoader[Any], Metrics] | None = None,
    validate_every: int | None = None,
    best: str | None = None,
    offload_activations: bool = False,
    trace_steps: tuple[int, int] | None = None,
    tensor_plan: Mapping[str, str] | None = None,
    context_plan: Mapping[str, Any] | None = None,
    expert_plan: Sequence[str] | None = None,
    unused_weights: bool = False,
) -> TrainingRun:
    """A training run around the user's own loop, in this process and those that torchrun started with it.

    `strategy`: a strategy, or a strategy request that fixes its choices, as a path or a value; None: the model whole on
    every process, in fp32, and `accumulate` batches of the loader (default: one) as a step. `loader`: the samples of a
    dataset with a length are divided anew by the strategy's global batch, shuffled if the loader shuffles, and fetched
    by its workers. A loader of an iterable dataset gives each process its own part in batches, which are the passes;
    its `state_dict` (torchdata's StatefulDataLoader) is kept in checkpoints. Resumes the run in `folder` if there is
    one. The plans are those of a `TrainClient`; with a `context_plan` the loader must give batches `(inputs, targets)`.

    `accumulate`: passes of a full step whose gradients are added up (default: as the strategy's micro-batch makes).
    `clip_norm`: the most that the 2-norm of a step's gradients may be. `scheduler`: a schedule of this optimizer, kept
    in checkpoints; the loop calls its `step()`. `validation`: held-out samples and `metrics(outputs, targets)`, figures
    by name as means over a batch. They are measured every `validate_every` steps and at the last one; the checkpoint
    with the best value of the metric `best` (NAME, NAME:min or NAME:max) stays. `offload_activations`: what the
    forward pass saves is on the host until the backward pass. `trace_steps`: the first and the last step that torch's
    profiler records, in `traces/`. `communication`: how gradients are exchanged, also as the text of
    `train --communication`; None: as the request says. Raises InputFault for what cannot be run.
    """
    if validation is None and (validate_every is not None or best):
        raise InputFault(
            "validation",
            f"is missing, but {'best' if best else 'validate_every'} is given",
            "Give validation=(loader, metrics).",
        )
    if not dist.is_initialized():
        join_process_group()
    if strategy is None:
        strategy = _plain_strategy(loader, dist.get_world_size(), accumulate or 1)
    if isinstance(strategy, str | Path):
        strategy = read_file(strategy)[1]
    exchange = communication_of(strategy, communication)
    if not isinstance(strategy, RunStrategy):
        strategy = run_strategy_of(strategy)
    if strategy.choices.pipeline > 1:
        raise InputFault(
            "the strategy's pipeline",
            f"is {strategy.choices.pipeline}, but a loop of your own sees whole batches, which its stages do not",
            "Train a client by `torchsplit train`, or fix pipeline to 1.",
        )
    ranks = strategy.choices.tensor * strategy.choices.context
    if is_stream(loader) and ranks > 1:
        raise InputFault(
            "the data",
            f"is a stream, and each of the {ranks} ranks of a copy of the model reads its own part",
            "Give a dataset with __len__ and __getitem__, or train a client with get_loader().",
        )
    run_folder = RunFolder(folder)
    # Held until the process ends: two runs never write to one folder.
    if dist.get_rank() == 0:
        _FOLDER_LOCKS.enter_context(run_folder.exclusive(resume=True))
    dist.barrier()
    _FOLDER_LOCKS.enter_context(run_folder.rank_lock())
    return TrainingRun(
        model, optimizer, loader, in_passes(fit_to_world_size(strategy, dist.get_world_size()), accumulate), run_folder,
        RunOptions(
            steps=steps, checkpoint_every=checkpoint_every, keep=keep, shares=shares, seed=seed, balance=balance,
            communication=exchange,
            update=UpdateOptions(clip_norm, accumulate=accumulate), validation=ValidationOptions(validate_every, best),
            offload_activations=offload_activations, trace_steps=trace_steps,
        ),
        tensor_plan=tensor_plan, context_plan=context_plan, expert_plan=expert_plan, unused_weights=unused_weights,
        scheduler=scheduler, held_out=held_out_of(*validation) if validation else None,
    )  # fmt: skip


def _plain_strategy(loader: DataLoader[Any], processes: int, accumulate: int) -> RunStrategy:
    """So many batches of a loader as a step, divided over the processes.

    Raises InputFault for a loader that names no size.
    """
    if loader.batch_size is None:
        raise InputFault(
            "the strategy",
            "is None, and the loader has no batch size to take for a step",
            "Give the loader a batch size, or a strategy.",
        )
    # Each process has a part of a batch, or a stream of its own.
    streams = processes if is_stream(loader) else 1
    samples = loader.batch_size * accumulate * streams
    choices = ParallelConfig(data=processes, micro_batch=-(-loader.batch_size * streams // processes))
    return RunStrategy(choices, TrainingJob(samples, "fp32"))
