"""Whether a profile says what a plain script reaches: five small models, each against a loop around its model.

    python -m benchmarks.profile_rates [--turns 3] [--seconds 2]

A turn is the loop in a process of its own, the profile, the loop again: both sides in one run, so that a host whose
speed drifts is seen. The loop's rate is the requests of all its calls over the time of all; the ratio is the
profile's throughput over the mean of both loops, and of several turns the median counts. Also told: how often the
profile's 90 % interval held the rate of the loop behind it. Ends with 1 where a ratio is off by more than 5 %.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from benchmarks import small_models
from torchsplit_core.profiling import MeasurementSettings
from torchsplit_core.values import ProfileRow
from torchsplit_core.workflow import profile

MOST_OFF = 0.05
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Turn:
    """Requests/s of the loop before and after the profile, and the profile's row."""

    before: float
    row: ProfileRow
    after: float

    @property
    def ratio(self) -> float:
        return 2 * self.row.throughput_rps / (self.before + self.after)

    @property
    def held(self) -> bool:
        return (self.row.low_rps or 0.0) <= self.after <= (self.row.high_rps or float("inf"))


def looped(name: str, batch: int, seconds: float) -> float:
    """Requests/s of a loop around the model, in this process."""
    client = getattr(small_models, name)()
    model, inputs = client.get_model(), client.get_example_inputs(batch)
    with torch.inference_mode():
        warm = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < warm:
            model(*inputs)
        calls, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            model(*inputs)
            calls += 1
        return calls * batch / (time.perf_counter() - begun)


def plain(name: str, batch: int, seconds: float) -> float:
    """`looped` in a child process."""
    command = [sys.executable, "-m", "benchmarks.profile_rates", "--loop", name, str(batch), str(seconds)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def turn(name: str, seconds: float) -> dict[int, Turn]:
    """One turn of a model, by batch size."""
    batches = getattr(small_models, name).batch_sizes
    before = {batch: plain(name, batch, seconds) for batch in batches}
    _, found = profile(
        f"{Path(small_models.__file__)}:{name}",
        device="cpu",
        trust=True,
        gpu_types=("A30-24GB",),
        settings=MeasurementSettings(point_budget_s=seconds),
    )
    if found.environment["notes"]:
        print(f"{name}: {found.environment['notes']}", file=sys.stderr)
    rows = {row.batch_size: row for row in found.rows if row.basis == "measured"}
    return {batch: Turn(before[batch], rows[batch], plain(name, batch, seconds)) for batch in batches}


def main() -> int:
    """Measure, compare and print; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a loop and of a point (default 2)")
    parser.add_argument("--loop", nargs=3, metavar=("MODEL", "BATCH", "S"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        name, batch, seconds = options.loop
        print(looped(name, int(batch), float(seconds)))
        return 0
    missed = 0
    print(
        "| model | batch | loop, requests/s | profile, requests/s | profile / loop | interval held the loop |"
    )
    print("|---|---|---|---|---|---|")
    for client in small_models.CLIENTS:
        turns = [turn(client.__name__, options.seconds) for _ in range(options.turns)]
        for batch in client.batch_sizes:
            found = [one[batch] for one in turns]
            ratio = median(one.ratio for one in found)
            missed += abs(ratio - 1) > MOST_OFF
            print(
                f"| {client.__name__} | {batch} | {median(one.after for one in found):,.0f} "
                f"| {median(one.row.throughput_rps for one in found):,.0f} | {ratio:.3f} "
                f"| {sum(one.held for one in found)} of {len(found)} |",
                flush=True,
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
