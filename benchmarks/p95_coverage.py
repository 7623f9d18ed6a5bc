"""How often the measured p95 of a served plan lies in the interval that its simulation gave, and how wide that is.

Twelve models, whole on a slice of one core, at 40, 70 and 90 % of their plan's throughput, Poisson arrivals. Each is
profiled once, whose blocks and looks tell how this host changes its speed; request and plan carry that; the simulation
of the very arrivals that are sent draws it, and 90 % of its runs lie in the interval. Then the plan is served and
measured. The front and the load generator have the other core. The last line has the coverage with its own 95 %
interval (Clopper and Pearson; the three loads of a model share a profile, so the cases are less than independent) and
the median width. `--seed` draws other arrivals.

Run it on an idle machine, with nothing else in it: `others` is the share of all cores that processes of somebody else
took in half a second before or after the profile, or behind the case, whichever is most. Cases above a limit are
counted apart, for neither profile nor simulation can know of them. About 15 minutes.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import binomtest

from benchmarks.served_models import SOURCE
from benchmarks.serving_accuracy import CASES, request_of, text
from torchsplit_core import workflow
from torchsplit_core.profiling.points import MeasurementSettings
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.values import InputFault
from torchsplit_core.values.serving.measurement import Measurement

MODELS = {
    "bert": "BertClient",
    "bert-short": "ShortBertClient",
    "bert-long": "LongBertClient",
    "clip": "ClipClient",
    "clip-small": "SmallClipClient",
    "fastpitch": "FastPitchClient",
    "fastpitch-wide": "WideFastPitchClient",
    "ocr-wide": "WideOcrClient",
    "resnet": "ResNetClient",
    "resnet-deep": "DeepResNetClient",
    "perceptron": "DeepClient",
    "perceptron-wide": "WideClient",
}
TUNED = {"ocr": "OcrClient"}
"""The model on which the intervals were tuned; it is not among the reported ones."""
LOADS = (0.4, 0.7, 0.9)
BATCHES = (1, 2, 4)
POINT_BUDGET_S = 1.5
MOST_OTHERS = 0.05
LOOK_S = 0.5
LEAST, MOST = 0.85, 0.97


@dataclass(frozen=True, slots=True)
class Result:
    """One case: whether the measured p95 was inside the interval, the interval's high / low, the mean batch's ms over
    the profile's, and the share of the cores that other processes took."""

    inside: bool
    width: float
    speed: float
    others: float


def others() -> float:
    """Share of all cores' time that other processes take while this one sleeps."""

    def ticks() -> tuple[int, int]:
        told = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        # Not taken by processes of this host: idle, iowait and steal (the time of other guests).
        return sum(told), told[3] + told[4] + told[7]

    before = ticks()
    time.sleep(LOOK_S)
    whole, free = (now - then for now, then in zip(ticks(), before, strict=True))
    return 1 - free / whole if whole else 0.0


def cases(name: str, source: str, loads: Sequence[float], seconds: float, seed: int) -> Iterator[str]:
    """One model's rows; appends each case's Result to RESULTS."""
    before = others()
    _, profile = workflow.profile(
        source, device="cpu:1c", batch_sizes=BATCHES, trust=True, gpu_types=("A100-80GB",),
        settings=MeasurementSettings(point_budget_s=POINT_BUDGET_S),
    )  # fmt: skip
    pace = next(row.pace for row in profile.rows if row.basis == "measured")
    told = "steady" if pace is None else f"{pace.cv:.3f} for {pace.seconds:.1f} s, {pace.drift_cv:.3f}"
    request = request_of(name, CASES[0], profile, None)
    plan = workflow.plan(request)
    capacity, demand = plan.models[0].throughput_rps, request.models[0].demand_rps
    before = max(before, others())
    for load in loads:
        found = workflow.measure(
            plan,
            request,
            ServeSettings(port=0, trust=True),
            LoadSettings(seconds, load * capacity / demand, seed),
        )
        yield row(name, load, told, found, max(before, others()))


def row(name: str, load: float, pace: str, found: Measurement, taken: float) -> str:
    """A case as a row of the table; appends its Result to RESULTS."""
    one, server = found.models[0], found.servers[0]
    low, high, measured = one.simulated_low_ms, one.simulated_high_ms, one.measured_ms.p95
    if measured is None:
        return f"| {name} | {load:.0%} | {pace} | n/a | n/a | n/a | n/a | n/a | n/a | n/a | {taken:.0%} |"
    # Without changes of speed the simulation gives one figure and no interval.
    ends = [one.simulated_ms.p95 if end is None else end.p95 for end in (low, high)]
    assert ends[0] is not None and ends[1] is not None
    inside = ends[0] <= measured <= ends[1]
    where = "inside" if inside else "low" if measured < ends[0] else "high"
    assert server.batch_ms is not None and server.planned_batch_ms is not None
    speed = server.batch_ms / server.planned_batch_ms
    RESULTS.append(Result(inside, ends[1] / ends[0], speed, taken))
    return (
        f"| {name} | {load:.0%} | {pace} | {text(one.simulated_ms.p95, 1)} | {ends[0]:.1f} | {ends[1]:.1f} | "
        f"{ends[1] / ends[0]:.2f} | {measured:.1f} | {where} | {speed:.2f} | {taken:.0%} |"
    )


RESULTS: list[Result] = []


def coverage(words: str, results: Sequence[Result]) -> str:
    """A sentence on the coverage of these cases."""
    if not results:
        return f"{words}: no case."
    inside = sum(one.inside for one in results)
    sure = binomtest(inside, len(results)).proportion_ci(0.95)
    width = statistics.median(one.width for one in results)
    return (
        f"{words}: {inside} of {len(results)} inside, {inside / len(results):.0%} (95 % interval {sure.low:.0%} to "
        f"{sure.high:.0%}); high / low {width:.2f} in the median."
    )


def spread(results: Sequence[Result]) -> float:
    """Root mean square of log(ms of a run's batches / ms of the profile's)."""
    return math.sqrt(statistics.fmean(math.log(one.speed) ** 2 for one in results)) if results else math.nan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = MODELS | TUNED
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(known))
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("a slice needs a core beside that of front and load: this host has 1 for us")
        return 0
    print(
        "| model | load | pace: cv for s, drift | simulated p95 ms | low | high | high / low | measured | where | "
        "batch ms / profiled | others |"
    )
    print("|---" * 11 + "|")
    for name in options.models:
        try:
            for line in cases(name, f"{SOURCE}:{known[name]}", options.loads, options.seconds, options.seed):
                print(line, flush=True)
        except InputFault as fault:
            print(f"| {name} | — | {fault} | n/a | n/a | n/a | n/a | n/a | n/a | n/a | — |", flush=True)
    print(f"\n{coverage('All', RESULTS)} Goal: {LEAST:.0%} to {MOST:.0%}.")
    print(
        f"A run's batches took {spread(RESULTS):.3f} more or less than its profile says (deviation of the logarithm)."
    )
    quiet = [one for one in RESULTS if one.others <= MOST_OTHERS]
    if len(quiet) < len(RESULTS):
        print(coverage(f"Where others took at most {MOST_OTHERS:.0%}", quiet))
    return 0


if __name__ == "__main__":
    sys.exit(main())
