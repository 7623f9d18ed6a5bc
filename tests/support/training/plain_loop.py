"""A plain loop of PyTorch, and the same loop around `prepare`: each writes its losses, rates, norms and weights."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.support.ports import free_port
from tests.support.training.client import Client, Data, Tiny
from tests.support.training.runs import beside

GLOBAL_BATCH, HELD_OUT = 8, 5


@dataclass(frozen=True)
class Recipe:
    """What a loop does. `samples`: of the data, in their order; `passes`: of a full step; `total`: of a schedule."""

    steps: int = 7
    samples: int = 20
    passes: int = 2
    clip_norm: float | None = None
    schedule: str | None = None
    optimizer: str = "adamw"
    checkpoint_every: int = 3
    total: int = 8
    dropout: float = 0.0
    accumulate: int | None = None
    workers: int = 0
    precision: str = "fp32"
    overflow: int | None = None
    offload: bool = False
    trace: tuple[int, int] | None = None
    validate_every: int | None = None
    best: str | None = None


class Samples(Data):
    """The first samples."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count


class Large(Samples):
    """One sample is so large that its gradients overflow where the loss is scaled."""

    def __init__(self, count: int, sample: int | None) -> None:
        super().__init__(count)
        self.sample = sample

    def __getitem__(self, index: int) -> Any:
        (inputs,), targets = super().__getitem__(index)
        return (inputs,), targets * (1e4 if index == self.sample else 1.0)


class Later(Samples):
    """Samples that none trains on."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(-1 - index)


def parts(recipe: Recipe) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """Model, optimizer, and schedule or None."""
    client = Client()
    torch.manual_seed(3)
    model = Tiny(8, recipe.dropout)
    optimizer = client.get_optimizer(model.parameters(), recipe.optimizer)
    schedules = {
        "one cycle": lambda: lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=recipe.total),
        "milestones": lambda: lr_scheduler.MultiStepLR(optimizer, [2, 4], 0.5),
        "in turn": lambda: lr_scheduler.SequentialLR(
            optimizer,
            [
                lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
                lr_scheduler.CosineAnnealingLR(optimizer, 9),
            ],
            [3],
        ),
    }
    return model, optimizer, schedules[recipe.schedule]() if recipe.schedule else None


def plain(recipe: Recipe, out: Path) -> None:
    """Nothing but PyTorch."""
    model, optimizer, scheduler = parts(recipe)
    data, losses, rates, norms, held_out = Large(recipe.samples, recipe.overflow), [], [], [], []
    half = recipe.precision == "fp16"
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    scales = []
    micro, start = GLOBAL_BATCH // recipe.passes, 0
    # As a run seeds its first rank.
    torch.manual_seed(0)
    for step in range(1, recipe.steps + 1):
        indices = range(start, min(start + GLOBAL_BATCH, recipe.samples))
        start = 0 if indices.stop == recipe.samples else indices.stop
        loss_sum = 0.0
        # The last step's passes are as even as can be, too.
        for part in torch.arange(indices.start, indices.stop).tensor_split(-(-len(indices) // micro)):
            batch = [data[index] for index in part.tolist()]
            (inputs,), targets = torch.utils.data.default_collate(batch)
            with torch.autocast("cpu", torch.float16, enabled=half):
                outputs = model(inputs).float()
            loss = nn.functional.mse_loss(outputs, targets)
            share = len(batch) / len(indices)
            scaler.scale(loss * share).backward()
            loss_sum += loss.item() * share
        scales.append(scaler.get_scale())
        scaler.unscale_(optimizer)
        if recipe.clip_norm:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)))
        rates.append(optimizer.param_groups[0]["lr"])
        scaler.step(optimizer)
        scaler.update()
        if scheduler:
            scheduler.step()
        optimizer.zero_grad()
        losses.append(loss_sum)
        if recipe.validate_every and (step % recipe.validate_every == 0 or step == recipe.steps):
            (inputs,), targets = torch.utils.data.default_collate([data[-1 - i] for i in range(HELD_OUT)])
            model.eval()
            with torch.no_grad():
                held_out.append(nn.functional.mse_loss(model(inputs), targets).item())
            model.train()
    written = {"losses": losses, "rates": rates, "norms": norms, "held_out": held_out, "scales": scales}
    torch.save(written | {"weights": model.state_dict()}, out)


def around(
    recipe: Recipe, strategy: str | None, folder: Path, out: Path, environment: dict[str, str]
) -> None:
    """The same loop around a run."""
    os.environ.update(environment)
    from torchsplit_core.training import prepare

    model, optimizer, scheduler = parts(recipe)
    # A worker that is not forked loads torch.
    how = {"num_workers": recipe.workers, "multiprocessing_context": "fork"} if recipe.workers else {}
    loader = torch.utils.data.DataLoader(
        Large(recipe.samples, recipe.overflow), batch_size=GLOBAL_BATCH // recipe.passes, **how
    )
    held_out = torch.utils.data.DataLoader(Later(HELD_OUT), batch_size=2)

    def measure(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
        # Random numbers that a measurement draws are not those that training draws.
        torch.rand(3)
        return {"loss": nn.functional.mse_loss(outputs, targets).item()}

    run = prepare(
        model, optimizer, loader, strategy, folder, steps=recipe.steps, checkpoint_every=recipe.checkpoint_every,
        clip_norm=recipe.clip_norm, scheduler=scheduler, validate_every=recipe.validate_every, best=recipe.best,
        validation=(held_out, measure) if recipe.validate_every else None, accumulate=recipe.accumulate,
        offload_activations=recipe.offload, trace_steps=recipe.trace,
    )  # fmt: skip
    for (inputs,), targets in run:
        run.backward(nn.functional.mse_loss(run.model(inputs), targets))
        optimizer.step()
        if scheduler:
            scheduler.step()
        optimizer.zero_grad()
    if run.rank == 0:
        torch.save(model.state_dict(), out)
    torch.distributed.destroy_process_group()


def request(folder: Path, recipe: Recipe, processes: int, shard: str = "none") -> Path:
    """A strategy request that fixes the passes of a step."""
    micro = GLOBAL_BATCH // recipe.passes // processes
    path = folder / f"strategy-{processes}-{shard}-{micro}.json"
    path.write_text(
        f"""{{"format": "torchsplit.strategy_request", "version": 1,
 "model": {{"kind": "source", "source": "client.py:client"}},
 "fleet": [{{"nodes": 1, "gpus_per_node": {processes}, "type": "CPU-2c"}}],
 "training": {{"global_batch": {GLOBAL_BATCH}, "precision": "{recipe.precision}"}},
 "fix": {{"shard": "{shard}", "micro_batch": {micro}}}}}"""
    )
    return path


def run_plain(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """What the plain loop writes, in a process beside."""
    process = beside(plain, recipe, folder / "plain.pt")
    process.join()
    assert process.exitcode == 0, asdict(recipe)
    written: dict[str, Any] = torch.load(folder / "plain.pt")
    return written


def run_around(
    recipe: Recipe, folder: Path, processes: int = 1, shard: str = "none", run: str = "run"
) -> dict[str, Any]:
    """The weights that the loop around a run ends with, in so many processes; `shard` empty: without a strategy."""
    port, started = free_port(), []
    for rank in range(processes):
        variables = {"RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {name: str(value) for name, value in variables.items()} if processes > 1 else {}
        strategy = str(request(folder, recipe, processes, shard)) if shard else None
        started.append(beside(around, recipe, strategy, folder / run, folder / "around.pt", environment))
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * processes
    weights: dict[str, Any] = torch.load(folder / "around.pt")
    return weights


class Broken(Samples):
    """Sample 17 is no number."""

    def __getitem__(self, index: int) -> Any:
        (inputs,), targets = super().__getitem__(index)
        return (inputs * float("nan") if index == 17 else inputs,), targets


def faulty(how: str, strategy: str, folder: Path, out: Path) -> None:
    """A loop that forgets `optimizer.step()`, or whose data is broken; writes what it is told, and the weights."""
    from torchsplit_core.training import prepare
    from torchsplit_core.values import InputFault

    recipe = Recipe()
    model, optimizer, _ = parts(recipe)
    data = Broken(recipe.samples) if how == "nan" else Samples(recipe.samples)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    try:
        for (inputs,), targets in (
            run := prepare(model, optimizer, loader, strategy, folder, checkpoint_every=2)
        ):
            run.backward(nn.functional.mse_loss(run.model(inputs), targets))
            if how == "nan":
                optimizer.step()
                optimizer.zero_grad()
    except InputFault as fault:
        out.write_text(f"{fault}\n")
    torch.save(model.state_dict(), out.with_name("weights.pt"))


def run_without_step(folder: Path) -> list[str]:
    """The lines of what a loop without `optimizer.step()` is told."""
    return _run_faulty("no step", folder)


def run_into_nan(folder: Path) -> list[str]:
    """The lines of what a loop is told whose loss is no number in its third step."""
    return _run_faulty("nan", folder)


def _run_faulty(how: str, folder: Path) -> list[str]:
    strategy = str(request(folder, Recipe(), 1))
    process = beside(faulty, how, strategy, folder / "run", folder / "fault.txt")
    process.join()
    return (folder / "fault.txt").read_text().splitlines()
