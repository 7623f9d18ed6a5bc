"""Whether training runs survive what can be killed: each kill, ten times.

    python -m benchmarks.training_kills [--turns 10] [--kills rank node …]

A small model of this file is trained by `torchsplit train` on this machine, samples in their order. After step 8, and
some hundredths of a second that differ by turn, something is killed; where blocks move some tenths after they begin to.
*Recovered*: the command (or, where it was killed itself, the next one with --resume) ends well, every step is written
once, and every loss is that of a run that nothing disturbed, to 10⁻⁶. *Seconds* are from the kill to the first step
that is done after it. Ends with 1 where one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchsplit_core.training import RunFolder
from torchsplit_core.values.training import ParallelConfig

STEPS, KILLED_AFTER, EXACT = 30, 8, 1e-6
LOOK_S, PATIENCE_S = 0.01, 300.0
MOVING_S = 0.3
"""Delay added to the kill with each turn, so that ten kills spread over a move."""
SAMPLE_S, SLOW_S = 0.01, 0.05
"""Seconds to fetch a sample (a run must last long enough to be killed in); seconds that a slow rank adds to a block."""
WIDTH, BLOCKS, BATCH = 128, 4, 8


class Net(nn.Module):
    """A chain of blocks with dropout: after a restart, random numbers must continue where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + F.dropout(block(x), 0.1 if os.environ.get("TRAINING_KILLS_DROPOUT") else 0.0)
        return self.head(x)


class Data:
    """Samples by index."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, ...], Tensor]:
        time.sleep(SAMPLE_S)
        x = torch.randn(6, generator=torch.Generator().manual_seed(index))
        return (x,), torch.stack([x.sum(), x[0] * x[1], x.abs().max()])


class Client:
    """A TrainClient."""

    def get_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Net()

    def get_dataset(self) -> Data:
        return Data()

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets)

    def get_optimizer(self, parameters: Iterable[nn.Parameter], kind: str) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)


def slow_down() -> None:
    """Make every block of a pipeline take longer in this process."""
    from torchsplit_core.training.pipeline.stage_modules import BlockModule

    at_once = BlockModule.forward

    def slowly(self: BlockModule, *given: Tensor) -> tuple[Tensor, ...]:
        time.sleep(SLOW_S)
        return at_once(self, *given)

    BlockModule.forward = slowly  # type: ignore[method-assign]


if os.environ.get("TRAINING_KILLS_SLOW_RANK", "none") == os.environ.get("RANK"):
    slow_down()
client = Client()
SOURCE = f"{Path(__file__).resolve()}:client"


@dataclass(slots=True)
class Scene:
    """A run's commands, and the state of its processes as its folder tells it."""

    folder: Path
    strategy: Path
    options: tuple[str, ...]
    environment: dict[str, str]
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *more: str) -> None:
        """Start another command."""
        given = ["train", SOURCE, "--trust", "--strategy", str(self.strategy), "-o", str(self.folder)]
        given += ["--steps", str(STEPS), "--in-order", *self.options, *more]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            self.commands.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torchsplit_core", *given],
                    stdout=log, stderr=log, env=self.environment, start_new_session=True,
                )
            )  # fmt: skip

    def end(self) -> None:
        """Kill the commands that still run."""
        for command in self.commands:
            if command.poll() is None:
                command.kill()
            command.wait()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Events of these kinds so far; a line still being written is left out."""
        path = self.folder / "events.jsonl"
        whole = path.read_text().splitlines(keepends=True) if path.exists() else []
        told = [json.loads(line) for line in whole if line.endswith("\n")]
        return [line for line in told if line["kind"] in kinds]

    def step(self) -> int:
        """The last step done."""
        return int((RunFolder(self.folder).last_step() or {"step": 0})["step"])

    def rank(self, number: int) -> int:
        """The process id of a rank."""
        told = [one for one in self.events("joined") if one["rank"] == number]
        return int(told[-1]["words"].split()[-1])

    def is_saving(self) -> bool:
        """Whether files of an incomplete checkpoint are being written."""
        return any(True for _ in self.folder.glob("checkpoints/.step-*.partial/*"))


@dataclass(frozen=True, slots=True)
class Kill:
    """Picks the process to kill. `resume`: the victim is the command itself, and another one resumes the run."""

    victim: Callable[[Scene], int]
    choices: dict[str, Any] = field(default_factory=lambda: {"data": 2})
    options: tuple[str, ...] = ()
    signal: int = signal.SIGKILL
    saving: bool = False
    resume: bool = False
    nodes: bool = False
    moving: bool = False


def forked_from(pid: int) -> int:
    """The parent process, from which a rank was forked."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    """Whether the process lives: between two attempts there are no ranks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


KILLS = {
    "rank": Kill(lambda scene: scene.rank(1)),
    "agent": Kill(lambda scene: scene.commands[0].pid, resume=True),
    "node": Kill(lambda scene: scene.commands[1].pid, nodes=True),
    "stalled rank": Kill(lambda scene: scene.rank(1), signal=signal.SIGSTOP, options=("--stall-limit", "3")),
    "what ranks are forked from": Kill(lambda scene: forked_from(scene.rank(1))),
    "rank, while a checkpoint is saved": Kill(
        lambda scene: scene.rank(1), saving=True, options=("--checkpoint-every", "1")
    ),
    "rank of a pipeline": Kill(lambda scene: scene.rank(1), {"pipeline": 2}),
    "rank, while blocks move": Kill(
        lambda scene: scene.rank(1), {"pipeline": 2}, moving=True, options=("--balance",)
    ),
}


class Lost(Exception):
    """Something did not happen in time."""


def until(seen: Callable[[], bool], scene: Scene, what: str) -> None:
    """Wait until `seen` is true. Raises Lost on timeout."""
    end = time.monotonic() + PATIENCE_S
    while not seen():
        if time.monotonic() > end:
            raise Lost(what)
        time.sleep(LOOK_S)


def scene_of(kill: Kill, folder: Path, *, disturbed: bool) -> Scene:
    """Start a run."""
    strategy = folder.with_suffix(".json")
    fix = {"micro_batch": 2, **kill.choices}
    strategy.write_text(json.dumps(request(fix)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    if kill.moving:
        environment["TRAINING_KILLS_SLOW_RANK"] = "1"
    elif not kill.nodes:
        # Fewer processes, or processes of other stages, draw other random numbers.
        environment["TRAINING_KILLS_DROPOUT"] = "1"
    options = (
        kill.options if "--checkpoint-every" in kill.options else ("--checkpoint-every", "5", *kill.options)
    )
    scene = Scene(folder, strategy, options, environment)
    if kill.nodes and disturbed:
        port = free_port()
        for name in ("a", "b"):
            scene.start(
                "--nnodes", "1:2", "--rendezvous", f"127.0.0.1:{port}", "--node", name, "--processes", "1"
            )
    else:
        scene.start()
    return scene


def request(fix: dict[str, Any]) -> dict[str, Any]:
    """A strategy request that fixes these choices and leaves all others at their defaults."""
    return {
        "format": "torchsplit.strategy_request",
        "version": 1,
        "model": {"kind": "source", "source": SOURCE, "profile": None},
        "fleet": [{"nodes": 1, "gpus_per_node": 2, "type": "CPU-2c"}],
        "training": {"global_batch": BATCH, "precision": "fp32", "optimizer": "adamw"},
        "fix": asdict(ParallelConfig()) | fix,
    }


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def undisturbed(kill: Kill, folder: Path) -> list[float]:
    """The losses of an undisturbed run. Raises Lost."""
    scene = scene_of(kill, folder, disturbed=False)
    try:
        until(lambda: scene.commands[0].poll() is not None, scene, "the undisturbed run did not end")
    finally:
        scene.end()
    return losses(folder)


def losses(folder: Path) -> list[float]:
    """The loss of every step. Raises Lost if a step is missing or appears twice."""
    lines = RunFolder(folder).steps()
    if [line["step"] for line in lines] != list(range(1, STEPS + 1)):
        raise Lost("the steps are not there once each, in order")
    return [line["loss"] for line in lines]


def turn(kill: Kill, folder: Path, number: int, expected: list[float]) -> tuple[float, float]:
    """Seconds from the kill to the first new step, and the largest difference of a loss. Raises Lost."""
    scene = scene_of(kill, folder, disturbed=True)
    try:
        if kill.moving:
            until(lambda: bool(scene.events("layers_moving")), scene, "no block moves")
        else:
            until(lambda: scene.step() >= KILLED_AFTER, scene, "it did not begin")
        time.sleep((MOVING_S if kill.moving else 0.03) * number)
        if kill.saving:
            until(scene.is_saving, scene, "no checkpoint was begun")
        until(lambda: is_there(kill.victim(scene)), scene, "there was nothing to kill")
        starts = len(scene.events("started", "resumed"))
        began = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(kill.victim(scene), kill.signal)
        if kill.resume:
            scene.commands[0].wait()
            scene.start("--resume")
        until(lambda: len(scene.events("started", "resumed")) > starts, scene, "it was not started again")
        again = scene.step()
        until(lambda: scene.step() > again, scene, "it made no new step")
        seconds = time.monotonic() - began
        last = scene.commands[0] if kill.nodes else scene.commands[-1]
        until(lambda: last.poll() is not None, scene, "it did not end")
        if last.returncode:
            raise Lost(f"it ended with {last.returncode}")
        found = losses(folder)
    finally:
        scene.end()
    return seconds, max(abs(one - other) for one, other in zip(found, expected, strict=True))


def row(name: str, kill: Kill, folder: Path, turns: int) -> tuple[str, bool]:
    """A row of the table, and whether all turns recovered."""
    expected = undisturbed(kill, folder / "undisturbed")
    seconds, differences = [], []
    for number in range(turns):
        try:
            took, difference = turn(kill, folder / f"turn-{number}", number, expected)
        except Lost as lost:
            print(f"{name}, turn {number + 1}: {lost}", file=sys.stderr)
            continue
        seconds.append(took)
        differences.append(difference)
    recovered = sum(one <= EXACT for one in differences)
    worst = max(differences, default=math.nan)
    times = [f"{one:.1f}" for one in (median(seconds), max(seconds))] if seconds else ["n/a", "n/a"]
    cells = [name, f"{recovered} of {turns}", *times, f"{worst:.1g}" if seconds else "n/a"]
    return f"| {' | '.join(cells)} |", recovered == turns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--kills", nargs="+", choices=KILLS, default=[*KILLS])
    options = parser.parse_args()
    print("| killed | recovered | s to the first new step, median | worst | largest difference of a loss |")
    print("|---|---|---|---|---|", flush=True)
    well = True
    for name in options.kills:
        with tempfile.TemporaryDirectory() as folder:
            line, all_recovered = row(name, KILLS[name], Path(folder), options.turns)
        print(line, flush=True)
        well &= all_recovered
    return 0 if well else 1


if __name__ == "__main__":
    raise SystemExit(main())
