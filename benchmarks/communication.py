"""Chosen exchanges of gradients against DDP's defaults, over a slowed network between two processes.

    python -m benchmarks.communication [--gbit 8 2 0.5] [--turns 9] [--steps 2] [--width 320]

A decoder (`benchmarks/trained_models.py`) is trained on two processes of this machine with one thread each. Their
loopback is slowed by tc (a token bucket) in a network namespace of its own, so that nothing else is slowed; where that
is not permitted, torch's all-reduce sleeps for its bytes instead, and the table says so. Each way to exchange has its
own copy of the model; their steps are taken in turns, in the same processes. *Loss*: `sample:digits`, trained by
`torchsplit train` with each exchange of gradients.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.trained_models import LENGTH, WORDS, Decoder
from torchsplit_core.checkpoints.trained_run import read_validation
from torchsplit_core.training import RunFolder, train
from torchsplit_core.training.communication.choice import describe_exchange
from torchsplit_core.training.communication.exchange import MIN_STEPS, GradientExchange
from torchsplit_core.training.communication.record import read_exchange
from torchsplit_core.values.strategy.communication import CommunicationRequest
from torchsplit_core.values.strategy.run import RunOptions, RunStrategy
from torchsplit_core.values.training import ParallelConfig, TrainingJob

BETWEEN_GBIT = 1.0
SEQUENCES = 4
"""Of a rank's step."""
WAYS: dict[str, CommunicationRequest | None] = {
    "DDP's defaults": None,
    "chosen": CommunicationRequest(),
    "chosen, bf16 allowed": CommunicationRequest(("bf16",)),
    "chosen, PowerSGD allowed": CommunicationRequest(("bf16", "powersgd")),
}
LOSSLESS = 2
"""How many of them lose nothing."""
SETTLED, FIRST = 17, 3
"""Steps after which a choice is made and checked, and after which DDP has formed its buckets."""
LOSSES: dict[str, CommunicationRequest] = {
    "plain": CommunicationRequest(hook="all_reduce"),
    "bf16": CommunicationRequest(hook="bf16"),
    "fp16": CommunicationRequest(hook="fp16"),
    "PowerSGD, rank 1": CommunicationRequest(hook="powersgd", powersgd_rank=1),
    "PowerSGD, rank 4": CommunicationRequest(hook="powersgd", powersgd_rank=4),
}
SHOWN_STEPS = (20, 80, 160, 330)
WINDOW = 20
"""A loss is the mean of so many steps."""


class Trained:
    """A copy of the model with its way to exchange gradients."""

    def __init__(self, request: CommunicationRequest | None, width: int, folder: Path) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Decoder(width))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.exchange = None
        if request is not None:
            folder.mkdir(exist_ok=True)
            self.exchange = GradientExchange(
                self.model, self.optimizer, request, folder, steps=MIN_STEPS, log=lambda *event: None
            )

    def step(self, tokens: Tensor) -> float:
        """Seconds of a step."""
        began = time.perf_counter()
        logits = self.model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        if self.exchange:
            with self.exchange.backward(last=True):
                (loss * self.exchange.loss_factor).backward()
        else:
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        if self.exchange:
            self.exchange.timer.take()
            self.exchange.after_step()
        return seconds


def as_rank(folder: Path, gbit: float, turns: int, steps: int, width: int, throttled: bool) -> None:
    """One of the processes: train every way in turns, and write the seconds of the steps."""
    torch.set_num_threads(1)
    if throttled:
        throttle(gbit)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tokens = torch.randint(WORDS, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(rank))
    compared = [*WAYS.items()] if dist.get_world_size() == 2 else [*WAYS.items()][:LOSSLESS]
    ways = {
        name: Trained(request, width, folder / str(place)) for place, (name, request) in enumerate(compared)
    }
    if throttled:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        # DDP's own exchange does not pass through torch's Python: its hook of the same effect does.
        ways["DDP's defaults"].model.register_comm_hook(None, allreduce_hook)
    for way in ways.values():
        for _ in range(SETTLED if way.exchange else FIRST):
            way.step(tokens)
    seconds: dict[str, list[list[float]]] = {name: [] for name in ways}
    for turn in range(turns):
        order = [*ways.items()]
        # Another way is the first of each turn.
        for name, way in order[turn % len(order) :] + order[: turn % len(order)]:
            dist.barrier()
            seconds[name].append([way.step(tokens) for _ in range(steps)])
    if rank == 0:
        size = sum(weight.numel() for weight in ways["chosen"].model.parameters()) * 4
        (folder / "seconds.json").write_text(json.dumps({"gradient_bytes": size, "seconds": seconds}))
    dist.barrier()
    os._exit(0)


def throttle(gbit: float) -> None:
    """Have each of torch's all-reduces take as long as its bytes take on a network that both processes share."""
    wire, plain = ThreadPoolExecutor(1), dist.all_reduce

    class Sent:
        def __init__(self, tensor: Tensor, **named: Any) -> None:
            self.future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

            def send() -> None:
                began = time.perf_counter()
                plain(tensor, **named)
                wanted = 2 * tensor.nbytes * 8 / (gbit * 1e9)
                time.sleep(max(0.0, began + wanted - time.perf_counter()))
                self.future.set_result([tensor])

            wire.submit(send)

        def get_future(self) -> torch.futures.Future[list[Tensor]]:
            return self.future

    def all_reduce(
        tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        sent = Sent(tensor, op=op, group=group)
        return sent if async_op else sent.future.wait()

    dist.all_reduce = all_reduce


def may_slow() -> bool:
    """Whether this process may have a network of its own, and slow it."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return False
    trial = "ip link set lo up && tc qdisc add dev lo root tbf rate 1gbit burst 128kb latency 400ms"
    done = subprocess.run(["unshare", "-n", "sh", "-c", trial], capture_output=True, check=False)
    return done.returncode == 0


def measure(
    folder: Path, gbit: float, options: argparse.Namespace, script: str, ranks: int
) -> dict[str, Any]:
    """The seconds of all ways; each `"$@"` of the shell script is a rank, `{rate}` its network's, in Mbit/s."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "benchmarks.communication", "--folder", str(folder), "--gbit", str(gbit),
        "--turns", str(options.turns), "--steps", str(options.steps), "--width", str(options.width),
    ]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(Path.cwd()),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
    }  # fmt: skip
    shell = ["sh", "-c", script.format(rate=round(gbit * 1000)), "sh", *command]
    subprocess.run(shell, check=True, env=environment, stderr=subprocess.DEVNULL)
    measured: dict[str, Any] = json.loads((folder / "seconds.json").read_text())
    return measured


BUCKET = "tbf rate {rate}mbit burst 256kb latency 400ms"
THROTTLED = 'RANK=0 "$@" --throttled & RANK=1 "$@" --throttled; wait'
SLOWED = f"""unshare -n sh -c 'ip link set lo up && tc qdisc add dev lo root {BUCKET} || exit 1
RANK=0 "$@" & RANK=1 "$@"; wait' sh "$@" """
TWO_NODES = f"""unshare -n sh -c 'ip link set lo up
unshare -n sleep 3600 & other=$!
sleep 1
ip link add near type veth peer name far && ip link set far netns $other || exit 1
ip addr add 10.9.0.1/24 dev near && ip link set near up && tc qdisc add dev near root {BUCKET}
nsenter -t $other -n sh -c "ip link set lo up && ip addr add 10.9.0.2/24 dev far && ip link set far up &&
tc qdisc add dev far root {BUCKET}"
export MASTER_ADDR=10.9.0.1 LOCAL_WORLD_SIZE=2 GLOO_SOCKET_IFNAME=far
RANK=2 nsenter -t $other -n "$@" & third=$!
RANK=3 nsenter -t $other -n "$@" & fourth=$!
export GLOO_SOCKET_IFNAME=near
RANK=0 "$@" & first=$!
RANK=1 "$@"; wait $first $third $fourth; kill $other' sh "$@" """
"""Networks of their own, so that no other process is slowed: a loopback, and a cable between two of them."""


def rows_of(network: str, measured: dict[str, Any], folder: Path) -> list[str]:
    """A row a way: its step, as a ratio to DDP's defaults, and what was predicted of it."""
    seconds: dict[str, list[list[float]]] = measured["seconds"]
    default = seconds["DDP's defaults"]
    rows = []
    for place, (name, turns) in enumerate(seconds.items()):
        whole = median(chain(*turns))
        record = read_exchange(folder / str(place))
        chosen, predicted = "—", "—"
        if record:
            chosen = describe_exchange(record.hook, record.bucket_mib)
            predicted = next(
                f"{item.step_s:.3f}"
                for item in record.candidates
                if (item.hook, item.bucket_mib) == (record.hook, record.bucket_mib)
            )
        ratios = [median(other) / median(turn) for other, turn in zip(default, turns, strict=True)]
        ratio = f"{median(chain(*default)) / whole:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append(
            f"| {network} | {name} | {chosen} | {whole:.3f} | {predicted} | {ratio if place else '1'} |"
        )
    return rows


def losses(folder: Path) -> list[str]:
    """The table of losses of `sample:digits`, a row an exchange."""
    steps = SHOWN_STEPS[-1]
    heads = [f"loss to step {step}" for step in SHOWN_STEPS]
    rows = [f"| exchange | {' | '.join(heads)} | held-out accuracy |", "|---" * (len(heads) + 2) + "|"]
    for place, (name, request) in enumerate(LOSSES.items()):
        run = folder / f"loss-{place}"
        strategy = RunStrategy(ParallelConfig(data=2, micro_batch=8), TrainingJob(16, "fp32", "adamw"))
        train(
            "sample:digits",
            strategy,
            run,
            options=RunOptions(steps=steps, checkpoint_every=10**6, communication=request),
        )
        lines = [line["loss"] for line in RunFolder(run).steps()]
        means = [f"{sum(lines[step - WINDOW : step]) / WINDOW:.4f}" for step in SHOWN_STEPS]
        validation = read_validation(run)
        accuracy = f"{validation.metrics['accuracy']:.1%}" if validation else "n/a"
        rows.append(f"| {name} | {' | '.join(means)} | {accuracy} |")
    return rows


def report(folder: Path, rates: Sequence[float], options: argparse.Namespace) -> None:
    slowed = may_slow()
    loads = [os.getloadavg()[0]]
    table = [
        "| network | way | exchange | step, s | predicted, s | times DDP's defaults |",
        "|---|---|---|---|---|---|",
    ]
    size = 0
    for gbit in rates:
        place = folder / f"{gbit:g}"
        place.mkdir()
        measured = measure(place, gbit, options, SLOWED if slowed else THROTTLED, 2)
        size = measured["gradient_bytes"]
        table += rows_of(f"{gbit:g} Gbit/s", measured, place)
        loads.append(os.getloadavg()[0])
    if slowed:
        place = folder / "nodes"
        place.mkdir()
        measured = measure(place, BETWEEN_GBIT, options, TWO_NODES, 4)
        table += rows_of(f"{BETWEEN_GBIT:g} Gbit/s between two nodes of two processes", measured, place)
    os.environ["OMP_NUM_THREADS"] = "1"
    by_loss = losses(folder)
    how = (
        "slowed by tc in a network of its own"
        if slowed
        else "as it is; torch's all-reduce sleeps for its bytes"
    )
    print("\n".join((*table, "")))
    print(
        f"{size / 1e6:.1f} MB of gradients, 2 processes on {len(os.sched_getaffinity(0))} cores, loopback {how}; "
        f"load average {', '.join(f'{load:.1f}' for load in loads)}.\n"
    )
    print("\n".join(by_loss))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gbit", type=float, nargs="+", default=[8, 2, 0.5])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--throttled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        as_rank(
            options.folder, options.gbit[0], options.turns, options.steps, options.width, options.throttled
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder), options.gbit, options)


if __name__ == "__main__":
    main()
