"""A training loop of a user's own, in processes that meet as torchrun's do."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch

import torchsplit_core.strategy
from tests.support.ports import free_port
from tests.support.training.runs import beside


def loop(client_path: str, strategy: str, folder: str, steps: int, environment: dict[str, str]) -> None:
    """Train the client's model by three lines around a loop."""
    os.environ.update(environment)
    spec = importlib.util.spec_from_file_location("client", client_path)
    assert spec and spec.loader
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    model = client.Client().get_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(client.Data(), batch_size=2)
    run = torchsplit_core.training.prepare(model, optimizer, loader, strategy, folder, steps=steps)
    for inputs, targets in run:
        run.backward(torch.nn.functional.mse_loss(run.model(*inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    torch.distributed.destroy_process_group()


def in_processes(count: int, client_path: str, strategy: Path, folder: Path, steps: int) -> list[int | None]:
    """The exit codes of so many processes; a single one is told of no other."""
    port = free_port()
    started = []
    for rank in range(count):
        told = {"RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {name: str(value) for name, value in told.items()} if count > 1 else {}
        started.append(beside(loop, client_path, str(strategy), str(folder), steps, environment))
    for process in started:
        process.join()
    return [process.exitcode for process in started]
