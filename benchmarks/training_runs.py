"""What a training run costs and what it gets through: overhead, checkpoints, recovery, scaling, memory.

    python -m benchmarks.training_runs [--width 384] [--steps 30] [--turns 9]

A decoder (`benchmarks/trained_models.py`) is trained on this machine, one thread a process. *Overhead*: a step of
`torchsplit train` over one of a plain loop with DistributedDataParallel under torchrun, the same samples, taken in
turns. *Stop*: how long the loop waits for an asynchronous checkpoint, over a synchronous save of the same state.
*Recovery*: from kill -9 of a rank to the next step that is done. *Balance*: a step of a pipeline with `--balance` over
one whose blocks nobody times, the same samples, taken in turns. *Scaling*: one global batch by 1, 2, 4 processes.
*Memory*: the fullest process, less the program, beside what is reckoned of the model.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.trained_models import MEMORY_WIDTH, SMALL, SOURCE, STAGED, UNTIMED, WIDE, WIDTH, client
from torchsplit_core.strategy.graph_model.calibration import device_factors, step_offset
from torchsplit_core.strategy.graph_model.model import GraphCostModel
from torchsplit_core.strategy.graph_model.step import GraphStepModel
from torchsplit_core.strategy.search.machines import Machine, read_fleet
from torchsplit_core.training import RunFolder, prepare, train
from torchsplit_core.training.monitor import send_request
from torchsplit_core.values.strategy.request import StrategyNodes
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import ParallelConfig, StepEstimate, TrainingJob
from torchsplit_core.values.units import MIB
from torchsplit_core.workflow import trace

BATCH, WARM = 8, 5
Turns = Sequence[Sequence[float]]
"""Seconds of each step, by turn."""
PAST, PATIENCE_S = 20, 300.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
DIVISIONS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("whole, 1 process", 1, {}),
    ("DDP", 2, {}),
    ("ZeRO-1", 2, {"shard": "zero1"}),
    ("FSDP2", 2, {"shard": "fsdp"}),
    ("DDP, each layer computed again", 2, {"recompute": "full"}),
    ("FSDP2, each layer computed again", 2, {"shard": "fsdp", "recompute": "full"}),
)


def strategy(data: int, **choices: Any) -> RunStrategy:
    """A strategy with `data` ranks and one micro-batch a step, unless `choices` say otherwise."""
    return RunStrategy(
        ParallelConfig(**{"data": data, "micro_batch": BATCH, **choices}), TrainingJob(BATCH, "fp32")
    )


def run(
    folder: Path, data: int, steps: int, *, source: str = SOURCE, balance: bool = False, **choices: Any
) -> list[dict[str, Any]]:
    """Train, and return the step records after the first WARM, which only warm up."""
    options = RunOptions(steps=steps, checkpoint_every=10**6, shuffle=False, balance=balance)
    train(source, strategy(data, **choices), folder, options=options, trust=True)
    return RunFolder(folder).steps()[WARM:]


def under_torchrun(processes: int, *arguments: str) -> None:
    """Run this file under torchrun with this many processes."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(processes),
        "--master-port",
        "0",
    ]
    here = {**os.environ, **ONE_THREAD, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path.cwd())}
    given = [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", __file__, *arguments]
    subprocess.run(given, check=True, env=here, stderr=subprocess.DEVNULL)


def plain(out: Path, steps: int) -> None:
    """Under torchrun: the plain loop that a user would write; writes the seconds of its steps to `out`."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.parallel.DistributedDataParallel(client.get_model())
    optimizer = client.get_optimizer(model.parameters(), "adamw")
    data, own, seconds = client.get_dataset(), BATCH // world, []
    for step in range(steps):
        began = time.perf_counter()
        samples = [data[step * BATCH + rank * own + number] for number in range(own)]
        (tokens,), targets = torch.utils.data.default_collate(samples)
        loss = client.get_loss(model(tokens), targets)
        loss.backward()
        loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        out.write_text(json.dumps(seconds[WARM:]))
    end()


def stops(out: Path, folder: Path, steps: int) -> None:
    """Under torchrun: write to `out` the seconds that asynchronous and synchronous checkpoints stop the loop."""
    import torch.distributed.checkpoint as dcp

    from torchsplit_core.training.async_checkpoint import state_of
    from torchsplit_core.training.parallelize import local_optimizer

    dist.init_process_group("gloo")
    model = client.get_model()
    optimizer = client.get_optimizer(model.parameters(), "adamw")
    loader = torch.utils.data.DataLoader(client.get_dataset())
    loop = prepare(
        model, optimizer, loader, strategy(dist.get_world_size()), folder, steps=steps, checkpoint_every=10**6
    )
    found: dict[str, list[float]] = {"async": [], "sync": []}
    for inputs, targets in loop:
        loop.backward(client.get_loss(loop.model(*inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
        if loop.step < 2 or loop.step == steps:
            continue
        loop.checkpointer.wait()
        dist.barrier()
        began = time.perf_counter()
        loop.save()
        found["async"].append(time.perf_counter() - began)
        loop.checkpointer.wait()
        dist.barrier()
        began = time.perf_counter()
        dcp.save(state_of(loop.model, local_optimizer(optimizer)), checkpoint_id=folder / f"sync-{loop.step}")
        found["sync"].append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    end()


def end() -> None:
    """End a torchrun process once all have arrived: destroying Gloo's groups after DDP hangs now and then."""
    dist.barrier()
    os._exit(0)


def recovery(folder: Path, turns: int) -> list[float]:
    """Seconds from kill -9 of rank 1 of 2 to the next step's record, for each turn."""
    run_folder, found = RunFolder(folder), list[float]()

    def step() -> int:
        return int((run_folder.last_step() or {"step": 0})["step"])

    def kill() -> None:
        for _ in range(turns):
            # Go beyond every step so far, since the last attempt went back to a checkpoint.
            until_beyond(step, step() + PAST)
            told = [line for line in events(folder) if line["kind"] == "joined" and line["rank"] == 1]
            starts, began = begins(folder), time.perf_counter()
            os.kill(int(told[-1]["words"].split()[-1]), signal.SIGKILL)
            until_beyond(lambda: begins(folder), starts)
            until_beyond(step, step())
            found.append(time.perf_counter() - began)

    def kill_and_stop() -> None:
        try:
            kill()
        finally:
            send_request(folder, "stop")

    thread = threading.Thread(target=kill_and_stop, daemon=True)
    thread.start()
    options = RunOptions(steps=10**6, checkpoint_every=5, shuffle=False)
    with contextlib.suppress(KeyboardInterrupt):
        train(SOURCE, strategy(2), folder, options=options, trust=True)
    if len(found) < turns:
        raise SystemExit(f"stopped after {len(found)} of {turns} kills")
    return found


def until_beyond(count: Callable[[], int], number: int) -> None:
    """Wait until the count exceeds `number`. Raises TimeoutError."""
    end = time.monotonic() + PATIENCE_S
    while count() <= number:
        if time.monotonic() > end:
            raise TimeoutError("nothing happened")
        time.sleep(0.02)


def balance(folder: Path, steps: int, turns: int) -> str:
    """The row that compares a pipeline with timed, movable blocks to one whose blocks are not timed."""
    timed, plainly, moved = [], [], 0
    staged: dict[str, Any] = {"pipeline": 2, "micro_batch": BATCH // 4}
    for turn in range(turns):
        runs = folder / f"untimed-{turn}", folder / f"balance-{turn}"
        plainly.append([line["step_s"] for line in run(runs[0], 1, steps, source=UNTIMED, **staged)])
        timed.append(
            [line["step_s"] for line in run(runs[1], 1, steps, source=STAGED, balance=True, **staged)]
        )
        moved += any(line["kind"] == "layers_moving" for line in events(runs[1]))
    words = f"{spread(timed, plainly)} of a pipeline; blocks moved in {moved} of {turns} turns"
    return row("overhead of a pipeline's --balance", overhead(timed, plainly), words)


def events(folder: Path) -> list[dict[str, Any]]:
    """The run's events so far."""
    path = folder / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def begins(folder: Path) -> int:
    """Number of attempts that have reached their first step."""
    return sum(line["kind"] in ("started", "resumed") for line in events(folder))


def report(folder: Path, steps: int, turns: int) -> list[str]:
    """The table, one row a figure."""
    rows = ["| figure | measured | of |", "|---|---|---|"]
    ours, others = [], []
    for turn in range(turns):
        out = folder / f"plain-{turn}.json"
        under_torchrun(2, "--plain", str(out), "--steps", str(steps))
        others.append(json.loads(out.read_text()))
        ours.append([line["step_s"] for line in run(folder / f"ours-{turn}", 2, steps)])
    rows.append(row("overhead of a step", overhead(ours, others), spread(ours, others)))
    out = folder / "stops.json"
    under_torchrun(2, "--stops", str(out), "--folder", str(folder / "stops"), "--steps", "8")
    told = json.loads(out.read_text())
    share = median(told["async"]) / median(told["sync"])
    times = [f"{median(told[name]) * 1e3:.0f} ms" for name in ("async", "sync")]
    words = f"{times[0]} of {times[1]}, medians of {len(told['sync'])}"
    rows.append(row("stop for an asynchronous checkpoint", f"{share:.0%} of a synchronous one", words))
    rows.append(balance(folder, steps, turns))
    seconds = recovery(folder / "recovery", turns)
    rows.append(
        row("recovery after kill -9", f"{max(seconds):.1f} s", f"longest of {len(seconds)}, 2 processes")
    )
    alone = 0.0
    for count in (1, 2, 4):
        rate = BATCH / median(line["step_s"] for line in run(folder / f"scale-{count}", count, steps))
        alone = alone or rate
        words = f"{rate / alone:.2f} times one process; {len(os.sched_getaffinity(0))} cores"
        rows.append(row(f"samples/s by {count} process{'es' * (count > 1)}", f"{rate:.1f}", words))
    rows += in_small_pieces("--memory", "--folder", str(folder / "memory"))
    return rows


def in_small_pieces(*arguments: str) -> list[str]:
    """This file's output, run with a malloc that returns large tensors at once: a peak is then memory in use."""
    here = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**16), "MALLOC_TRIM_THRESHOLD_": str(2**16)}
    command = [sys.executable, "-m", "benchmarks.training_runs", *arguments]
    return subprocess.run(
        command, check=True, env=here, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


def memory(folder: Path) -> list[str]:
    """A row for each division: its fullest process's memory beyond a tiny model's run, beside the prediction."""
    steps = WARM + 3
    program = peak(run(folder / "program", 1, steps, source=SMALL))
    model = GraphCostModel(trace(WIDE, trust=True))
    measured = {
        name: peak(run(folder / f"memory-{name}", count, steps, source=WIDE, **choices)) - program
        for name, count, choices in DIVISIONS
    }
    rows = []
    for name, count, choices in DIVISIONS:
        used, whole = measured[name], measured[DIVISIONS[0][0]]
        (machine,) = read_fleet((StrategyNodes(1, count, "CPU-1c"),), "fp32")
        # The micro-batch of one process: the processes share the batch.
        divided = ParallelConfig(**{"data": count, "micro_batch": BATCH // count, **choices})
        told = reckoned(model, machine, divided).memory
        predicted = told.total - told.reserve
        words = (
            f"{used / whole:.2f} times the whole; {predicted / MIB:.0f} MiB predicted ({predicted / used - 1:+.0%}); "
            f"width {MEMORY_WIDTH}, beside {program / MIB:.0f} MiB of the program"
        )
        rows.append(row(f"memory: {name}", f"{used / MIB:.0f} MiB", words))
    return rows


def reckoned(model: GraphCostModel, machine: Machine, choices: ParallelConfig) -> StepEstimate:
    """Estimate a step from the model's graph."""
    job = TrainingJob(BATCH, "fp32")
    factors = device_factors(model, machine, job, None)
    return GraphStepModel(
        model, machine, job, step_offset(model, machine, job, (), factors), factors
    ).estimate(choices)


def peak(lines: Sequence[dict[str, Any]]) -> float:
    """Memory of the fullest process, bytes."""
    return float(max(line["memory_bytes"] for line in lines))


def row(figure: str, measured: str, of: str) -> str:
    return f"| {figure} | {measured} | {of} |"


def overhead(ours: Turns, others: Turns) -> str:
    """Overhead of a step: by the medians over all turns, and the range over single turns."""
    whole = median(chain(*ours)) / median(chain(*others)) - 1
    by_turn = [median(one) / median(other) - 1 for one, other in zip(ours, others, strict=True)]
    return f"{whole:+.1%} (turns {min(by_turn):+.0%} to {max(by_turn):+.0%})"


def spread(ours: Turns, others: Turns) -> str:
    """Median of each turn, ms."""
    told = [" ".join(f"{median(one) * 1e3:.0f}" for one in turns) for turns in (ours, others)]
    return f"ms a step by turn: {told[0]}; plain {told[1]}; 2 processes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=9)
    for name in ("--plain", "--stops", "--folder"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault(WIDTH, str(options.width))
    if options.plain:
        plain(options.plain, options.steps)
        return
    if options.stops:
        stops(options.stops, options.folder, options.steps)
        return
    os.environ.update(ONE_THREAD)
    if options.memory:
        print("\n".join(memory(options.folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(report(Path(folder), options.steps, options.turns)))


if __name__ == "__main__":
    main()
