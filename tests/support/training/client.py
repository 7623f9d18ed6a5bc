"""A tiny model to train that does what a test tells it, at a sample: `FILE.py:client` reads it from `plan.json` beside.

The plan: `{"kill": {sample: target}, "stall": {sample: how}, "gates": [samples at which a rank waits for the file
`open-SAMPLE`], "torch": version that rank 1 says, "slow": seconds that rank 1 takes longer for a sample,
"slow_blocks": seconds that it takes longer for each block of a pipeline, "slow_small_buckets": seconds that the
exchange of a bucket takes longer once small ones were chosen, "no_rounding": true where the backend sums no rounded
gradients, "quick_moves": true where a move of blocks counts as costing nothing, "room": [sample, samples of a pass
that fit from there on], "short": true where no memory is free, "nan": sample, "samples": n, "width": w, "blocks": n,
"dropout": p, "raise": sample, "disk": sample, "no_room_for": rank, "spare": weights that no step uses, "held_out":
held-out samples, "bad_held_out": the one that cannot be read, "nan_metric": true, "nan_gradients": true, "best_at":
the measurement (from 1) after which the metric `score` gets worse, "end": [rank, what it is killed before at the end
of the run: "close" (it waits for the last checkpoint) or "barrier" (the ranks let each other go)]}`. Samples stand in
their order, so a sample is a step and a rank. A kill happens once, `target` is `rank`, `starter` (which ranks are
forked from) or `launcher`; so does a stall, `how` is `stopped` or `waiting`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from torchsplit_core.training import async_checkpoint, loop
from torchsplit_core.training.rebalance import memory_guard, migration

HERE = Path(__file__).parent
PLAN: dict[str, Any] = json.loads((HERE / "plan.json").read_text()) if (HERE / "plan.json").exists() else {}


class Block(nn.Module):
    """Two products that tensor parallelism can cut, with a residual."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Tiny(nn.Module):
    """Blocks between two products."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(PLAN.get("blocks", 2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)
        self.spare = nn.Linear(2, 2) if PLAN.get("spare") else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Data:
    """Samples by number; fetching one may be the last thing that a process does."""

    most = 1000
    """Samples that fit into memory at once."""

    def __len__(self) -> int:
        return int(PLAN.get("samples", 400))

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Tensor]:
        if (target := PLAN.get("kill", {}).get(str(index))) and once(f"killed-{index}"):
            victims = {"rank": os.getpid(), "starter": os.getppid(), "launcher": launcher()}
            os.kill(victims[target], signal.SIGKILL)
            signal.pause()
        if (how := PLAN.get("stall", {}).get(str(index))) and once(f"stalled-{index}"):
            os.kill(os.getpid(), signal.SIGSTOP) if how == "stopped" else threading.Event().wait()
        if os.environ.get("RANK") == "1":
            time.sleep(PLAN.get("slow", 0.0))
        if index >= PLAN.get("room", [len(self), 0])[0]:
            self.most = PLAN["room"][1]
        while index in PLAN.get("gates", ()) and not (HERE / f"open-{index}").exists():
            time.sleep(0.02)
        if int(os.environ.get("RANK", "0")) == PLAN.get("no_room_for"):
            os.kill(os.getpid(), signal.SIGKILL)
        if index == PLAN.get("raise"):
            raise ValueError(f"sample {index} is unreadable")
        if index == PLAN.get("disk"):
            # Files of at most this size from here on: checkpoints are larger, lines are not.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(6, generator=generator)
        if index == PLAN.get("nan"):
            x = x * float("nan")
        return (x,), torch.stack([x.sum(), x[0] * x[1], x.abs().max()])


def once(what: str) -> bool:
    """Whether that has not happened before."""
    before = (HERE / what).exists()
    (HERE / what).touch()
    return not before


def launcher() -> int:
    """The process that started the one that this one was forked from."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


if "stream" in PLAN:
    from torchdata.stateful_dataloader import StatefulDataLoader
if "slow_blocks" in PLAN and os.environ.get("RANK") == "1":
    from torchsplit_core.training.pipeline import stage_modules

    def slowly(self: stage_modules.BlockModule, *given: Tensor) -> tuple[Tensor, ...]:
        time.sleep(PLAN["slow_blocks"])
        return _at_once(self, *given)

    _at_once = stage_modules.BlockModule.forward
    stage_modules.BlockModule.forward = slowly  # type: ignore[method-assign]
if "quick_moves" in PLAN:
    migration.estimated_s = lambda start_s, checkpoint_s: 0.0
if PLAN.get("no_rounding"):
    from torchsplit_core.training.communication import exchange as unrounded

    vars(unrounded)["supports"] = lambda *given: False
if "slow_small_buckets" in PLAN:
    from torchsplit_core.training.communication import choice, exchange, hooks

    def chosen(*given: object) -> choice.ExchangeChoice:
        vars(exchange)["simple_hook"] = slow_hook
        return choice.ExchangeChoice("all_reduce", 0.25, "small buckets")

    def slow_hook(*given: Any) -> Any:
        made = hooks.simple_hook(*given)

        def wait(bucket: Any) -> Any:
            time.sleep(PLAN["slow_small_buckets"])
            return made(bucket)

        return wait

    vars(exchange)["choose"] = chosen
if "short" in PLAN:
    memory_guard.free_share = lambda device: 0.01
if "end" in PLAN and str(PLAN["end"][0]) == os.environ.get("RANK"):
    _ending = {"close": async_checkpoint.AsyncCheckpointer, "barrier": loop.TrainingRun}[PLAN["end"][1]]
    _as_it_is = getattr(_ending, PLAN["end"][1])

    def killed(self: object) -> object:
        if once("killed-end"):
            os.kill(os.getpid(), signal.SIGKILL)
        return _as_it_is(self)

    setattr(_ending, PLAN["end"][1], killed)
if "torch" in PLAN and os.environ.get("RANK") == "1":
    torch.__version__ = PLAN["torch"]


class Client:
    """A TrainClient."""

    tensor_plan = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}
    unused_weights = bool(PLAN.get("spare"))

    def __init__(self) -> None:
        self.data = Data()

    def get_model(self) -> nn.Module:
        torch.manual_seed(3)
        return Tiny(int(PLAN.get("width", 8)), float(PLAN.get("dropout", 0.0)))

    def get_dataset(self) -> Data:
        return self.data

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(outputs) > self.data.most:
            raise MemoryError(f"{len(outputs)} samples")
        if PLAN.get("nan_gradients"):
            outputs.register_hook(lambda gradient: gradient * float("nan"))
        return F.mse_loss(outputs, targets)

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        if kind == "adamw":
            return torch.optim.AdamW(parameters, lr=1e-3)
        return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


class HeldOut(Data):
    """Samples of their own."""

    def __len__(self) -> int:
        return int(PLAN["held_out"])

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Tensor]:
        if index == PLAN.get("bad_held_out"):
            raise ValueError(f"sample {index} is unreadable")
        return super().__getitem__(-1 - index)


class MeasuredClient(Client):
    """With held-out samples."""

    def get_validation_dataset(self) -> HeldOut:
        return HeldOut()

    def get_metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        if "best_at" in PLAN:
            self.calls = getattr(self, "calls", 0) + 1
            return {"score": 2.0 if self.calls < PLAN["best_at"] else 1.0}
        error = float("nan") if PLAN.get("nan_metric") else (outputs - targets).abs().amax().item()
        return {"largest_error": error}


class Stream(IterableDataset):
    """This rank's samples of the plan's first so many, in turn."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.place = rank, ranks, 0

    def __iter__(self) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        while (index := self.place * self.ranks + self.rank) < PLAN["stream"]:
            self.place += 1
            yield Data()[index]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class StreamClient(Client):
    """With a loader of its own."""

    def get_loader(self, rank: int, ranks: int, batch: int) -> DataLoader[Any]:
        return StatefulDataLoader(Stream(rank, ranks), batch_size=batch)


client = StreamClient() if "stream" in PLAN else MeasuredClient() if "held_out" in PLAN else Client()
