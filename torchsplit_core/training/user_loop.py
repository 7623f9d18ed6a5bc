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
from torchsplit_core.training.fitted_strategy import communication_of, fit_to_world_size, run_strategy_of
from torchsplit_core.training.loop import TrainingRun
from torchsplit_core.training.process_group import join_process_group
from torchsplit_core.training.run_folder import RunFolder
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy

_FOLDER_LOCKS = ExitStack()
"""Locks of the folders that this process writes to, held until it ends."""


def prepare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    strategy: RunStrategy | str | Path | Any,
    folder: str | Path,
    *,
    steps: int | None = None,
    checkpoint_every: int = 50,
    keep: int = 2,
    shares: tuple[float, ...] = (),
    balance: bool = False,
    seed: int = 0,
    communication: CommunicationRequest | str | None = None,
    tensor_plan: Mapping[str, str] | None = None,
    context_plan: Mapping[str, Any] | None = None,
    expert_plan: Sequence[str] | None = None,
    unused_weights: bool = False,
) -> TrainingRun:
    """A training run around the user's own loop, in this process and those that torchrun started with it.

    `strategy`: a strategy, or a strategy request that fixes its choices, as a path or a value. `loader`: its dataset
    must have a length; its samples are divided anew by the strategy's global batch, and shuffled if the loader
    shuffles. Resumes the run in `folder` if there is one. The plans are those of a `TrainClient`; with a `context_plan`
    the loader must give batches `(inputs, targets)`. `communication`: how gradients are exchanged, also as the text of
    `train --communication`; None: as the request says. Raises InputFault for what cannot be run.
    """
    if not dist.is_initialized():
        join_process_group()
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
    run_folder = RunFolder(folder)
    # Held until the process ends: two runs never write to one folder.
    if dist.get_rank() == 0:
        _FOLDER_LOCKS.enter_context(run_folder.exclusive(resume=True))
    dist.barrier()
    _FOLDER_LOCKS.enter_context(run_folder.rank_lock())
    return TrainingRun(
        model, optimizer, loader, fit_to_world_size(strategy, dist.get_world_size()), run_folder,
        RunOptions(
            steps=steps, checkpoint_every=checkpoint_every, keep=keep, shares=shares, seed=seed, balance=balance,
            communication=exchange,
        ),
        tensor_plan=tensor_plan, context_plan=context_plan, expert_plan=expert_plan, unused_weights=unused_weights,
    )  # fmt: skip
