"""Measure a model that is being trained on held-out samples, on all ranks of its run."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, default_collate

from torchsplit_core.model_source import foreign_code
from torchsplit_core.training.async_checkpoint import preserved_random_state
from torchsplit_core.training.division.context import ContextParallel
from torchsplit_core.training.parallelize import to_device
from torchsplit_core.training.rank_loader import check_numbered
from torchsplit_core.training.sampling import apportion_samples
from torchsplit_core.values import InputFault

Metrics = Callable[[Any, Any], Mapping[str, float]]
"""Takes outputs and targets of a batch; returns figures by name, each the mean over its samples."""
NO_BATCH = object()
MOST_BATCH, PASS_FACTOR = 64, 4
"""Samples of a pass of a client's held-out samples: at most, and as many times those of a training pass."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out samples, in batches of this size, and what is measured of them.

    Raises InputFault for samples that have no number or length, or are none.
    """

    data: Any
    collate: Callable[[list[Any]], Any]
    batch: int
    metrics: Metrics

    def __post_init__(self) -> None:
        check_numbered(self.data, "the validation data", "Give a dataset with __len__ and __getitem__.")


def held_out_of(loader: DataLoader[Any], metrics: Metrics) -> HeldOut:
    """The samples of a loader, in batches of its size. Raises InputFault as `HeldOut` does."""
    return HeldOut(loader.dataset, loader.collate_fn, loader.batch_size or 1, metrics)


def held_out_of_client(client: Any, micro_batch: int) -> HeldOut:
    """The held-out samples of a client, measured by its loss and its metrics.

    Raises InputFault for a client without such samples.
    """
    if not hasattr(client, "get_validation_dataset"):
        raise InputFault(
            "--validate-every",
            "is given, but the client has no get_validation_dataset()",
            "Give it one, with get_metrics(outputs, targets) for more than the loss, or leave out the option.",
        )
    with foreign_code("get_validation_dataset()"):
        data = client.get_validation_dataset()

    def metrics(outputs: Any, targets: Any) -> dict[str, float]:
        figures = {"loss": float(client.get_loss(outputs, targets))}
        return (
            figures | dict(client.get_metrics(outputs, targets))
            if hasattr(client, "get_metrics")
            else figures
        )

    # Nothing is kept for a backward pass, so more samples fit than in training.
    return HeldOut(data, default_collate, min(MOST_BATCH, PASS_FACTOR * micro_batch), metrics)


class Evaluator:
    """Measures the model of a run; every rank calls `measure` in the same steps.

    `rank` of `ranks`: the data rank whose part of the samples this rank has. `divided`: ranks exchange values within a
    forward pass, so that all must run equally many. `heartbeat` is called before each.
    """

    def __init__(
        self,
        held_out: HeldOut,
        rank: int,
        ranks: int,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        divided: bool,
        context: ContextParallel | None,
        heartbeat: Callable[[], None],
    ) -> None:
        self.held_out, self.group, self.device = held_out, group, device
        self.divided, self.context, self._heartbeat = divided, context, heartbeat
        counts = apportion_samples(len(held_out.data), ranks)
        start = sum(counts[:rank])
        self.indices = range(start, start + counts[rank])
        self.passes = -(-max(counts) // held_out.batch)

    def measure(self, model: nn.Module) -> tuple[dict[str, float], int]:
        """The mean of each metric over all held-out samples, and their number; the same on every rank.

        The model, its mode and all random numbers are as before. Raises InputFault on every rank if one of them fails.
        """
        # A pass of DDP would send buffers, and begin an exchange of gradients.
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        sums: dict[str, float] = defaultdict(float)
        problem = None
        with preserved_random_state(), _evaluating(inner), torch.no_grad():
            try:
                self._add_passes(inner, sums)
            except InputFault as fault:
                problem = fault
        return self._exchange(sums, problem)

    def _add_passes(self, model: nn.Module, sums: dict[str, float]) -> None:
        """Add each metric times its samples, of all passes of this rank."""
        fault: InputFault | None = None
        for number in range(self.passes):
            self._heartbeat()
            first = number * self.held_out.batch
            indices = self.indices[first : first + self.held_out.batch]
            batch: Any = NO_BATCH
            try:
                if indices or self.divided:
                    # A rank without samples left runs one that does not count, since the others wait for it.
                    batch = self._fetch(indices or range(1))
            except InputFault as error:
                fault = error
            if self._any_failed(fault):
                break
            if batch is NO_BATCH:
                continue
            try:
                self._add(model, batch, len(indices), sums)
            except InputFault as error:
                fault = error
        if fault:
            raise fault

    def _any_failed(self, fault: InputFault | None) -> bool:
        """Whether this rank has failed, or, where ranks wait for each other, any of them."""
        if not self.divided:
            return fault is not None
        failed = torch.tensor(float(fault is not None))
        dist.all_reduce(failed, group=self.group)
        return bool(failed)

    def _fetch(self, indices: range) -> Any:
        with foreign_code("the validation data"):
            batch = self.held_out.collate([self.held_out.data[index] for index in indices])
        return to_device(batch, self.device)

    def _add(self, model: nn.Module, batch: Any, counted: int, sums: dict[str, float]) -> None:
        with self.context.divide(batch) if self.context else contextlib.nullcontext(batch) as part:
            inputs, targets = part
            # One input may be given as it is, as in the training loop.
            given = inputs if isinstance(inputs, tuple | list) else (inputs,)
            with foreign_code("the model on validation data"):
                outputs = model(*given)
            with foreign_code("the validation's metrics"):
                figures = {
                    str(name): float(value) for name, value in self.held_out.metrics(outputs, targets).items()
                }
        for name, value in figures.items():
            if not math.isfinite(value):
                raise InputFault(
                    "the validation's metrics", f"are {value} for {name}", "Return finite numbers."
                )
            sums[name] += value * counted

    def _exchange(
        self, sums: Mapping[str, float], problem: InputFault | None
    ) -> tuple[dict[str, float], int]:
        """The means over all ranks. Raises the first rank's fault on every rank."""
        gathered: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(gathered, (problem, dict(sums), len(self.indices)), group=self.group)
        for rank, (fault, _, _) in enumerate(gathered):
            if fault:
                where = fault.where if len(gathered) == 1 else f"{fault.where} (rank {rank})"
                raise InputFault(where, fault.problem, fault.remedy)
        names = list(dict.fromkeys(name for _, part, _ in gathered for name in part))
        # Ranks that have the same samples count them, and their figures, equally often.
        samples = sum(count for _, _, count in gathered)
        means = {name: sum(part.get(name, 0.0) for _, part, _ in gathered) / samples for name in names}
        return means, len(self.held_out.data)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode; afterwards each module is as it was: a user may have left some of them so."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
