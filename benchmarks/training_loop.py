"""What a loop around `prepare` costs over a plain loop of PyTorch.

    python -m benchmarks.training_loop [--turns 15] [--steps 30]

Both train the same model on the same samples in one process with one thread: forward pass, backward pass, gradient
clipping, AdamW, a schedule, the loss read in each step. The loop around `prepare` also checks that all is finite,
writes a line for each step and keeps a run's folder. They take turns, the order changing each time; a turn's figure is
the median of its steps after the first five, and the table has the medians of the turns. Checkpoints are left out:
`benchmarks.training_runs` has them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from benchmarks.trained_models import WIDTH, Client
from sample_models.digits import DigitsClient
from torchsplit_core.training import prepare, schedule_of

WARM = 5
CASES: tuple[tuple[str, Callable[[], Any], int, str], ...] = (
    ("digits, width 64, 32 images", DigitsClient, 32, ""),
    ("decoder, width 256, 8 × 64 words", Client, 8, "256"),
)
"""Name, client, samples of a step, width."""


def parts(
    client: Any, steps: int, batch: int
) -> tuple[nn.Module, torch.optim.Optimizer, Any, DataLoader[Any]]:
    """Model, optimizer, schedule and loader, the same for both loops."""
    model = client.get_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = Subset(client.get_dataset(), range(batch * steps))
    return model, optimizer, schedule_of(optimizer, "cosine", steps, 2), DataLoader(data, batch_size=batch)


def plain(client: Any, steps: int, batch: int) -> Iterator[None]:
    """The plain loop; yields after each step."""
    model, optimizer, scheduler, loader = parts(client, steps, batch)
    for inputs, targets in loader:
        loss = client.get_loss(model(*inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        loss.item()
        yield


def around(client: Any, steps: int, batch: int, folder: Path) -> Iterator[None]:
    """The same loop around a run; yields when a step has ended."""
    model, optimizer, scheduler, loader = parts(client, steps, batch)
    run = prepare(
        model, optimizer, loader, None, folder, steps=steps, checkpoint_every=10**6, clip_norm=1.0,
        scheduler=scheduler,
    )  # fmt: skip
    for number, (inputs, targets) in enumerate(run):
        # The run ends a step when it is asked for the next.
        if number:
            yield
        run.backward(client.get_loss(run.model(*inputs), targets))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def step_seconds(steps: Iterator[None]) -> float:
    """The median step after the first ones."""
    times = [time.perf_counter() for _ in steps]
    return median(later - earlier for earlier, later in zip(times[WARM:], times[WARM + 1 :], strict=False))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | plain loop, ms a step | around `prepare`, ms | ratio | ratios of the turns, quartiles |")
    print("|---|---|---|---|---|")
    for name, make_client, batch, width in CASES:
        os.environ[WIDTH] = width
        client = make_client()
        seconds: dict[str, list[float]] = {"plain": [], "around": []}
        with tempfile.TemporaryDirectory() as folder:
            for turn in range(options.turns):
                run = around(client, options.steps, batch, Path(folder) / str(turn))
                loops = {"plain": plain(client, options.steps, batch), "around": run}
                for kind in sorted(loops, reverse=turn % 2 == 0):
                    seconds[kind].append(step_seconds(loops[kind]))
        ratios = [ours / theirs for theirs, ours in zip(*seconds.values(), strict=True)]
        low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(
            f"| {name} | {median(seconds['plain']) * 1e3:.2f} | {median(seconds['around']) * 1e3:.2f} "
            f"| {middle:.3f} | {low:.3f} to {high:.3f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
