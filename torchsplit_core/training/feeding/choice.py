"""How a rank gets its batches: by number, by number from worker processes, or as its loader gives them."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from torchsplit_core.training.feeding.stream_batches import StreamBatches, unknown_length
from torchsplit_core.training.feeding.worker_batches import WorkerBatches
from torchsplit_core.training.parallelize import data_rank
from torchsplit_core.training.pipeline.stage_batches import StageBatches
from torchsplit_core.training.rank_loader import RankBatches
from torchsplit_core.training.sampling import steps_per_epoch
from torchsplit_core.values import InputFault
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy


def is_stream(loader: DataLoader[Any]) -> bool:
    """Whether a loader's samples have no number."""
    return isinstance(loader.dataset, IterableDataset)


def steps_of_pass(loader: DataLoader[Any], global_batch: int) -> int:
    """Steps that take every sample once. Raises InputFault if the data has no length."""
    if is_stream(loader):
        raise unknown_length()
    return steps_per_epoch(len(loader.dataset), global_batch)


def batches_of(
    loader: DataLoader[Any], strategy: RunStrategy, options: RunOptions, group: dist.ProcessGroup
) -> RankBatches:
    """This rank's batches. `group`: all ranks, on the CPU. Raises InputFault for a loader that the run cannot take."""
    choices, job, rank = strategy.choices, strategy.job, dist.get_rank()
    shares = options.shares or strategy.shares
    if is_stream(loader):
        _check_stream(strategy, options, shares)
        stream = StreamBatches(loader, job.global_batch, data_rank(choices, rank), choices.data, group)
        if options.update.accumulate not in (None, stream.passes):
            raise InputFault(
                "--accumulate",
                f"is {options.update.accumulate}, but the loader's batches make a step in {stream.passes}",
                f"Give {stream.passes}, or a loader with another batch size.",
            )
        return stream
    if choices.pipeline > 1:
        if loader.num_workers:
            raise InputFault(
                "--workers",
                f"is {loader.num_workers}, but the stages of a pipeline fetch their samples themselves",
                "Leave it out, or fix pipeline to 1.",
            )
        kind: type[RankBatches] = StageBatches
    else:
        kind = WorkerBatches if loader.num_workers else RankBatches
    return kind(
        loader,
        job.global_batch,
        choices.micro_batch,
        data_rank(choices, rank),
        choices.data,
        shares,
        options.seed,
    )


def _check_stream(strategy: RunStrategy, options: RunOptions, shares: tuple[float, ...]) -> None:
    """Raises InputFault for what needs samples by number."""
    why = "but the samples of the data have no number: each rank takes what its loader gives"
    if strategy.choices.pipeline > 1:
        raise InputFault(
            "the strategy's pipeline", f"is {strategy.choices.pipeline}, {why}", "Fix pipeline to 1."
        )
    if shares or options.balance:
        name, value = (
            ("--shares", ",".join(f"{share:g}" for share in shares)) if shares else ("--balance", "given")
        )
        raise InputFault(name, f"is {value}, {why}", "Leave it out.")
