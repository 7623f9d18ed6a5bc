"""Loops over data whose samples have no number, plain and around `prepare`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.support.ports import free_port
from tests.support.training.client import Tiny
from tests.support.training.plain_loop import Samples
from tests.support.training.runs import beside


@dataclass(frozen=True)
class Reading:
    """How a stream is read. `counts`: samples of each rank's part; `passes`: batches of a step on each rank."""

    counts: tuple[int, ...] = (11,)
    steps: int = 7
    batch: int = 2
    passes: int = 2
    workers: int = 0
    stateful: bool = True
    fingerprint: str = "a"
    class_name: str = "Part"
    dropout: float = 0.2
    strategy: str | None = None


class Part(IterableDataset):
    """Samples from one number on, with its place among them."""

    def __init__(self, first: int, count: int, fingerprint: str) -> None:
        self.first, self.count, self.fingerprint, self.place = first, count, fingerprint, 0
        self.samples = Samples(first + count)

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        step = info.num_workers if info else 1
        while self.place * step < self.count:
            index = self.place * step + (info.id if info else 0)
            self.place += 1
            if index < self.count:
                yield self.samples[self.first + index]
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


class Elsewhere(Part):
    """Another data set, whose state looks alike."""


class Unlike(Part):
    """A data set whose state has another form."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["offset"]


Unlike.__qualname__ = "Part"


def loader_of(reading: Reading, rank: int) -> DataLoader[Any]:
    """The loader of a rank's part."""
    kind = {"Part": Part, "Elsewhere": Elsewhere, "Unlike": Unlike}[reading.class_name]
    data = kind(sum(reading.counts[:rank]), reading.counts[rank], reading.fingerprint)
    loader = StatefulDataLoader if reading.stateful else DataLoader
    # A worker that is not forked loads torch.
    how = {"num_workers": reading.workers, "multiprocessing_context": "fork"} if reading.workers else {}
    return loader(data, batch_size=reading.batch, **how)


def model_of(reading: Reading) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Tiny(8, reading.dropout)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def plain(reading: Reading, out: Path) -> None:
    """One process reads the parts of all ranks, and adds up what each would; only for a model without dropout if there
    are several."""
    model, optimizer = model_of(reading)
    loaders = [loader_of(reading, rank) for rank in range(len(reading.counts))]
    torch.manual_seed(0)
    iterators: list[Any] = [None for _ in loaders]
    losses: list[float] = []
    while len(losses) < reading.steps:
        if all(iterator is None for iterator in iterators):
            iterators = [iter(loader) for loader in loaders]
        batches = []
        for place, iterator in enumerate(iterators):
            for _ in range(0 if iterator is None else reading.passes):
                if (batch := next(iterator, None)) is None:
                    iterators[place] = None
                    break
                batches.append(batch)
        if not batches:
            continue
        total = sum(len(targets) for _, targets in batches)
        loss_sum = 0.0
        for (inputs,), targets in batches:
            loss = nn.functional.mse_loss(model(inputs), targets)
            (loss * (len(targets) / total)).backward()
            loss_sum += loss.item() * (len(targets) / total)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss_sum)
    torch.save({"losses": losses, "weights": model.state_dict()}, out)


def around(reading: Reading, rank: int, folder: Path, out: Path, environment: dict[str, str]) -> None:
    """The same around a run; what it is refused stands in `out` as text."""
    os.environ.update(environment)
    from torchsplit_core.training import prepare
    from torchsplit_core.values import InputFault

    model, optimizer = model_of(reading)
    loader = loader_of(reading, rank)
    try:
        run = prepare(
            model, optimizer, loader, reading.strategy, folder, steps=reading.steps, checkpoint_every=2,
            accumulate=None if reading.strategy else reading.passes,
        )  # fmt: skip
        for (inputs,), targets in run:
            run.backward(nn.functional.mse_loss(run.model(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
    except InputFault as fault:
        out.with_suffix(f".{rank}.txt").write_text(str(fault))
        os._exit(0)
    if rank == 0:
        torch.save(model.state_dict(), out)
    torch.distributed.destroy_process_group()


def run_plain(reading: Reading, folder: Path) -> dict[str, Any]:
    """What the plain loop writes."""
    process = beside(plain, reading, folder / "plain.pt")
    process.join()
    written: dict[str, Any] = torch.load(folder / "plain.pt")
    return written


def run_around(reading: Reading, folder: Path) -> str | dict[str, Any]:
    """The weights that the loop around a run ends with, or what it is refused."""
    (folder / "around.0.txt").unlink(missing_ok=True)
    port, started = free_port(), []
    for rank in range(len(reading.counts)):
        variables = {
            "RANK": rank,
            "WORLD_SIZE": len(reading.counts),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        environment = (
            {name: str(value) for name, value in variables.items()} if len(reading.counts) > 1 else {}
        )
        started.append(beside(around, reading, rank, folder / "run", folder / "around.pt", environment))
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * len(started)
    if (folder / "around.0.txt").exists():
        return (folder / "around.0.txt").read_text()
    weights: dict[str, Any] = torch.load(folder / "around.pt")
    return weights
