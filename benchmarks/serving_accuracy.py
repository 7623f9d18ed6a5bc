"""Served plans under load: measured throughput against the plan's, p95 against the simulation's and the replay's.

Four models, whole on a slice of one core and on one of two, and cut in two over two slices, at 40, 70 and 90 % of the
plan's throughput, Poisson arrivals. Slices never take the last core: the front and the load generator have it. So two
cores for slices need three in all; where they are not there, a row says n/a. Run it on an idle machine.

The simulation draws batch times as the measured points of the profile vary (parts of a cut model, estimated from them,
take one time a batch), the replay has the times that this very run's batches took: where the first misses and the
second does not, it is the host's cores that changed their speed since. How steady they are is told first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torchsplit_core import workflow
from torchsplit_core.hardware import ClockStability, measure_cores
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.profiling.points import MeasurementSettings
from torchsplit_core.serving.settings import LoadSettings, ServeSettings
from torchsplit_core.values import FleetEntry, PartitionOutcome, PlanRequest, Profile
from torchsplit_core.values.serving.measurement import MeasuredTimes, Measurement

SOURCE = Path(__file__).with_name("served_models.py")
MODELS = {"bert": "BertClient", "clip": "ClipClient", "fastpitch": "FastPitchClient", "ocr": "OcrClient"}
LOADS = (0.4, 0.7, 0.9)
RATE_GOAL, TIME_GOAL, CASES_GOAL = 0.10, 0.15, 0.90
BATCHES = (1, 2, 4)
POINT_BUDGET_S = 10.0
"""Seconds for each batch size: sizes are timed one after the other, and a core's speed drifts for up to seconds."""
LOOK_S = 5.0
"""Seconds over which the cores' speed is sampled."""


@dataclass(frozen=True, slots=True)
class Case:
    """A way to serve a model: its slices, and how many cores they take."""

    name: str
    cores: int
    profile: str
    cut: bool


CASES = (
    Case("whole, 1c", 1, "1c", False),
    Case("whole, 2c", 2, "2c", False),
    Case("cut, 1c + 1c", 2, "1c", True),
)


def request_of(model: str, case: Case, profile: Profile, cut: PartitionOutcome | None) -> PlanRequest:
    """A request for one model on a host of the case's cores, with the case as its only choice."""
    request = build_request(
        [profile], (FleetEntry(f"CPU-{case.cores}c"),), candidates=[cut] if case.cut and cut else []
    )
    (spec,) = request.models
    variants = tuple(one for one in spec.variants if (len(one.stages) > 1) == case.cut)[:1]
    stages = tuple(
        replace(stage, points=tuple(point for point in stage.points if point.profile == case.profile))
        for stage in variants[0].stages
    )
    return replace(
        request, models=(replace(spec, name=model, variants=(replace(variants[0], stages=stages),)),)
    )


def measured(model: str, seconds: float, loads: tuple[float, ...], cores: int) -> Iterator[str]:
    """One model's rows of the table; appends each case's Result to RESULTS."""
    source = f"{SOURCE}:{MODELS[model]}"
    possible = [case for case in CASES if case.cores < cores]
    devices = ",".join(dict.fromkeys(f"cpu:{case.profile}" for case in possible))
    settings = MeasurementSettings(point_budget_s=POINT_BUDGET_S)
    graph, profile = workflow.profile(
        source, device=devices, batch_sizes=BATCHES, trust=True, settings=settings, gpu_types=("A100-80GB",)
    )
    cut = workflow.partition(source, profile, graph=graph, stages=2) if any(c.cut for c in possible) else None
    for case in CASES:
        if case not in possible:
            yield (
                f"| {model} | {case.name} | n/a | n/a | n/a | n/a | n/a | n/a | n/a | needs {case.cores + 1} cores, "
                f"the host has {cores} |"
            )
            continue
        request = request_of(model, case, profile, cut)
        plan = workflow.plan(request)
        capacity = plan.models[0].throughput_rps
        for load in loads:
            found = workflow.measure(
                plan,
                request,
                ServeSettings(port=0, trust=True),
                LoadSettings(seconds, load * capacity / request.models[0].demand_rps),
            )
            yield row(model, case, load, found)


@dataclass(frozen=True, slots=True)
class Result:
    """Whether a case met the goals: its rate, and its p95 against the simulation's and the replay's."""

    rate: bool
    simulated: bool
    replayed: bool


RESULTS: list[Result] = []


def row(model: str, case: Case, load: float, found: Measurement) -> str:
    """A run as a row of the table; appends its Result to RESULTS."""
    (one,) = found.models
    rate = one.measured_rps / one.predicted_rps
    simulated = ratio(one.measured_ms, one.simulated_ms)
    replayed = ratio(one.measured_ms, one.replayed_ms)
    RESULTS.append(Result(abs(rate - 1) <= RATE_GOAL, near(simulated), near(replayed)))
    said = "; ".join(fault.message for fault in found.disagreements) or "—"
    return (
        f"| {model} | {case.name} | {load:.0%} | {one.predicted_rps:.1f} | {rate:.3f} | "
        f"{text(one.simulated_ms.p95, 1)} | {text(simulated, 3)} | {text(one.replayed_ms.p95, 1)} | "
        f"{text(replayed, 3)} | {said} |"
    )


def ratio(found: MeasuredTimes, wanted: MeasuredTimes) -> float | None:
    """Ratio of the 95th percentiles; None if either is unknown."""
    return None if found.p95 is None or not wanted.p95 else found.p95 / wanted.p95


def near(found: float | None) -> bool:
    """Whether a ratio of times meets the goal."""
    return found is not None and abs(found - 1) <= TIME_GOAL


def text(value: float | None, digits: int) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def steadiness(found: Iterable[ClockStability]) -> Iterator[str]:
    """The table of the cores' clock stability."""
    yield "| core | fixed loop ms, 5 % | 50 % | 95 % | 95 % / 5 % | the same of medians of 100 ms |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        yield (
            f"| {one.core} | {one.p5_ms:.3f} | {one.p50_ms:.3f} | {one.p95_ms:.3f} | {one.ratio:.2f} | "
            f"{one.window_ratio:.2f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load (default 15)")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        print("a slice needs a core beside that of front and load: this host has 1 for us")
        return 0
    for line in steadiness(measure_cores(os.sched_getaffinity(0), LOOK_S)):
        print(line)
    print("\n| model | slices | load | predicted requests/s | measured / predicted | simulated p95 ms | "
          "measured / simulated p95 | replayed p95 ms | measured / replayed p95 | what parts |")  # fmt: skip
    print("|---" * 10 + "|")
    for model in options.models:
        for line in measured(model, options.seconds, tuple(options.loads), cores):
            print(line, flush=True)
    if not RESULTS:
        return 0
    good = sum(one.rate and one.simulated for one in RESULTS)
    print(
        f"\nOf {len(RESULTS)} cases rates are within {RATE_GOAL:.0%} in {sum(one.rate for one in RESULTS)}, p95 within "
        f"{TIME_GOAL:.0%} of the simulation in {sum(one.simulated for one in RESULTS)}, of the replay in "
        f"{sum(one.replayed for one in RESULTS)}; rate and simulation both in {good} "
        f"({good / len(RESULTS):.0%}; goal {CASES_GOAL:.0%})."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
