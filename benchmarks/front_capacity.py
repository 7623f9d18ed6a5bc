"""What the front of a served plan carries: the highest open-loop rate at which clients' p95 stays within 50 ms.

A model that gives back its input, on a slice of one core; the front has another, the load generator is on the slice's.
Rates are doubled until one is too high, then the bracket is halved to 5 %. `--against` runs another checkout of
TorchSplit in turn with this one: an older front, with the same plans and the same generator. Without it the rates stand
beside what the costs say that `serving.load_test.frontend_costs` measures at first use: requests/s of a core that does
nothing else. Where worker and generator fill their core before the front fills its own, the highest rate is theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from torchsplit_core.files import write_file
from torchsplit_core.planning.planner import plan
from torchsplit_core.serving.load_test.frontend_costs import measure_costs, processor_ms
from torchsplit_core.serving.load_test.session import ServerHandle, send_load
from torchsplit_core.values import FleetEntry, PlanModel, PlanRequest, Point, Stage, Variant

ROOT = Path(__file__).resolve().parent.parent
MODEL = "empty"
LIMIT_MS = 50.0
FIRST_RPS, MOST_RPS = 100.0, 50_000.0
NEARNESS = 1.05
"""The search ends when the lowest rate too high is at most this times the highest rate that is not."""
START_S = 120.0
SOURCE = '''"""A model that gives back its input."""

import torch


class Empty(torch.nn.Module):
    def forward(self, x):
        return x


class Client:
    batch_sizes = [1]

    def get_model(self):
        return Empty()

    def get_example_inputs(self, batch_size):
        return (torch.zeros(batch_size, {floats}),)
'''


@contextmanager
def serving(root: Path, floats: int, batch: int, options: Sequence[str] = ()) -> Iterator[ServerHandle]:
    """Serve the empty model by the checkout at `root`: inputs of `floats` floats, batches of up to `batch`; `options`
    are passed on to `serve`."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "empty.py").write_text(SOURCE.format(floats=floats))
        point = Point("CPU", "1c", batch, 10_000.0 * batch, 0.1, memory_gib=0.1)
        model = PlanModel(
            MODEL, (Variant("whole", (Stage("whole", (point,)),)),), source=f"{folder}/empty.py:Client"
        )
        request = PlanRequest((FleetEntry("CPU-1c"),), (model,))
        write_file(request, folder / "request.json")
        write_file(plan(request), folder / "plan.json")
        command = [
            sys.executable, "-m", "torchsplit_core", "serve", str(folder / "plan.json"),
            "--request", str(folder / "request.json"), "--port", "0", "--ready-file", str(folder / "ready.json"),
            "--trust", "--queue-limit", "100000", *options,
        ]  # fmt: skip
        environment = os.environ | {"PYTHONPATH": str(root)}
        log = folder / "log"
        with log.open("wb") as errors:
            front = subprocess.Popen(command, cwd=root, env=environment, stderr=errors)
        try:
            yield replace(_ready(front, folder / "ready.json", log), pid=front.pid)
        finally:
            front.terminate()
            front.wait()


def _ready(front: subprocess.Popen[bytes], ready: Path, log: Path) -> ServerHandle:
    until = time.monotonic() + START_S
    while not ready.exists():
        if front.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)
    address = urlsplit(json.loads(ready.read_text())["url"])
    return ServerHandle(str(address.hostname), int(address.port or 0), ())


def p95_ms(server: ServerHandle, rate_rps: float, seconds: float, seed: int = 0) -> float:
    """p95 at the clients under Poisson arrivals; infinite if a request has no result."""
    gaps = np.random.default_rng(seed).exponential(1 / rate_rps, int(rate_rps * seconds))
    times = [float(due) for due in np.cumsum(gaps)]
    answers = send_load(
        server, {MODEL: server.example_request(MODEL)}, {MODEL: times}, slice_cores()
    ).answers[MODEL]
    if any(status != 200 for _, _, status in answers):
        return float("inf")
    return float(np.percentile([response for _, response, _ in answers], 95)) * 1e3


def slice_cores() -> list[int]:
    """The plan's slice's core. The generator shares it, so that the front end has the others to itself."""
    return sorted(os.sched_getaffinity(0))[:1]


def highest_rate(
    root: Path = ROOT, *, floats: int = 16, batch: int = 1, seconds: float = 3.0, limit_ms: float = LIMIT_MS
) -> float:
    """Highest rate, requests/s, at which the front end of the checkout at `root` keeps the p95 limit (empty model).

    A rate is tried for `seconds`, and once more before it counts as too high: a core that another guest slowed for
    a moment says nothing about the front end. 0 if even the first rate is too high.
    """
    with serving(root, floats, batch) as server:
        return highest_of(server, seconds, limit_ms)


def highest_of(server: ServerHandle, seconds: float, limit_ms: float = LIMIT_MS) -> float:
    """`highest_rate` of a front end that is already running."""
    p95_ms(server, FIRST_RPS, 1.0)
    good, bad, rate = 0.0, MOST_RPS, FIRST_RPS
    while good < MOST_RPS and (good == 0.0 or bad / good > NEARNESS):
        if any(p95_ms(server, rate, seconds, seed) <= limit_ms for seed in (0, 1)):
            good = rate
        elif good == 0.0:
            return 0.0
        else:
            bad = rate
        rate = min(2 * good, MOST_RPS) if bad == MOST_RPS else (good * bad) ** 0.5
    return good


def core_share(server: ServerHandle, rate_rps: float, seconds: float) -> float:
    """The front end's processor time over wall time, at a rate."""
    before = processor_ms(server.pid)
    gaps = np.random.default_rng(2).exponential(1 / rate_rps, int(rate_rps * seconds))
    times = [float(due) for due in np.cumsum(gaps)]
    answers = send_load(
        server, {MODEL: server.example_request(MODEL)}, {MODEL: times}, slice_cores()
    ).answers[MODEL]
    spent = processor_ms(server.pid) - before
    return spent / 1e3 / max(due + response for due, response, _ in answers)


def reckoned(bodies: Sequence[int], batches: Sequence[int], turns: int, seconds: float) -> None:
    """Print the rates predicted from measured costs, beside the highest rates and the front end's share of a core."""
    costs = measure_costs()
    print(
        "| ms of a core a request (blocks) | a batch | a MB | ms a batch is handed over | generator's ms a request |"
    )
    print("|---" * 5 + "|")
    print(
        f"| {costs.ms_per_request:.3f} ({costs.ms_per_request_low:.3f} to {costs.ms_per_request_high:.3f}) | "
        f"{costs.ms_per_batch:.3f} | {costs.ms_per_mb:.2f} | {costs.hand_over_ms:.2f} | {costs.generator_ms:.3f} |\n"
    )
    print(
        "| input bytes | batch | reckoned requests/s | MB/s | highest requests/s, p95 within 50 ms | "
        "front's core at that rate | of a whole core / reckoned |"
    )
    print("|---" * 7 + "|")
    for floats in bodies:
        for batch in batches:
            rates, shares = [], []
            for _ in range(turns):
                with serving(ROOT, floats, batch) as server:
                    rates.append(highest_of(server, seconds))
                    shares.append(core_share(server, rates[-1], seconds) if rates[-1] else 0.0)
            rate, share = statistics.median(rates), statistics.median(shares)
            said = 1e3 / costs.ms(8 * floats, 1 / batch)
            print(
                f"| {4 * floats} | {batch} | {said:.0f} | {8e-6 * floats * said:.3g} | {rate:.0f} | "
                f"{share:.0%} | {f'{rate / share / said:.2f}' if share else 'n/a'} |",
                flush=True,
            )


def in_turn(
    roots: Sequence[Path], bodies: Sequence[int], batches: Sequence[int], turns: int, seconds: float
) -> None:
    """Print one row for each body and batch size: medians, with the checkouts measured in turn."""
    print("| input bytes | batch | this, requests/s | other, requests/s | this / other |")
    print("|---" * 5 + "|")
    for floats in bodies:
        for batch in batches:
            found: dict[Path, list[float]] = {root: [] for root in roots}
            for _ in range(turns):
                for root in roots:
                    found[root].append(highest_rate(root, floats=floats, batch=batch, seconds=seconds))
            this, other = (statistics.median(found[root]) for root in roots)
            ratio = f"{this / other:.2f}" if other else "n/a"
            print(f"| {4 * floats} | {batch} | {this:.0f} | {other:.0f} | {ratio} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="another checkout, in turn with this one"
    )
    parser.add_argument("--floats", nargs="+", type=int, default=[16, 65_536], help="of a request's input")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--turns", type=int, default=1, help="searches, of which the median counts")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each rate (default 3)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("the front needs a core beside the slice's: this host has 1 for us")
        return 0
    asked = options.floats, options.batches, options.turns, options.seconds
    if options.against is None:
        reckoned(*asked)
    else:
        in_turn((ROOT, options.against.resolve()), *asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
