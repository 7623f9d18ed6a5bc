"""Days planned: time at scale, and GPU-hours and requests served of windows, one plan and a rule that scales by load.

At scale: models of `planner_instances` whose demand is a cosine over the day with a peak and a depth of its own, in
equal windows. Wall seconds are those of plan_day, its check included.

Services: the rates are those of production services (examples/days, benchmarks/data), the models are not: each service
is a measured model of the A100 library, scaled so that its largest demand takes an equal part of the fleet. Windows are
cut from the trace (demand: the largest of a window), every demand is a minimum, fewest GPUs. Served: of the requests of
the trace those below the throughput of what runs, step by step, less what transitions lose. The rule is what people do:
replicas of each model on its slice of most requests/s per memory slice, as many as keep the utilisation of the step
before at a target (ceil, as HPA does), packed first fit; it loses nothing when it changes, which favours it.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.planner_instances import instance
from benchmarks.planner_report import heading, row
from torchsplit_core import workflow
from torchsplit_core.day_plans.window_requests import with_demands_as_minima
from torchsplit_core.hardware import gpu_type, place_layout
from torchsplit_core.planning import plan
from torchsplit_core.tables.demand_trace.request_windows import (
    WindowSettings,
    with_trace_windows,
    without_zeros,
)
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace, read_demand_trace
from torchsplit_core.values import (
    DayOutcome,
    DemandWindow,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    SolverOptions,
)

ROOT = Path(__file__).resolve().parent.parent
GPU = "A100-80GB"
SCALE = ("min_gpus", "leximin")
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
FLEET = 32
SERVICES = (1, 2, 3, 4, 6, 12, 24)
"""Numbers of windows."""
ROOMS, ROOM_WINDOWS = (1.05, 1.1, 1.2), 4
"""Times the demand that windows are cut from, where they are judged on other days."""


def synthetic_day(kind: str, windows: int, models: int, gpus: int, seconds: float) -> PlanRequest:
    """A request over equal windows; its largest demands take about two thirds of the fleet."""
    rng = random.Random(f"{models}x{gpus}x{windows}")
    request = instance(models, gpus, kind=kind, seconds=seconds)  # type: ignore[arg-type]
    bounds = [_clock(24 * 60 * number // windows) for number in range(windows)]
    filled = []
    for model in request.models:
        peak, depth = rng.uniform(0, 24), rng.uniform(0.3, 0.9)
        windows_of_model = []
        for number, (start, end) in enumerate(zip(bounds, [*bounds[1:], "24:00"], strict=True)):
            turn = (24 * (number + 0.5) / windows - peak) / 24
            share = 1 - depth * (1 - math.cos(2 * math.pi * turn)) / 2
            demand = float(f"{0.6 * share * model.demand_rps:.4g}")
            least = demand if kind == "min_gpus" else None
            windows_of_model.append(DemandWindow(start, start, end, demand, least))
        filled.append(replace(model, demand_windows=tuple(windows_of_model)))
    return replace(request, models=tuple(filled))


def scale_table(kinds: Sequence[str], windows: int, models: int, gpus: int, seconds: float) -> None:
    """Print time, proof, GPU-hours and changes of synthetic days."""
    columns = (
        "objective", "windows × models × GPUs", "time limit s", "wall s", "windows proven", "largest gap",
        "GPU-hours by window", "with one plan", "worst served by window", "with one plan", "touched GPUs, median",
        "requests lost, share of the day's",
    )  # fmt: skip
    print(heading(columns))
    for kind in kinds:
        request = synthetic_day(kind, windows, models, gpus, seconds)
        begun = time.perf_counter()
        day = workflow.plan_day(request)
        wall = time.perf_counter() - begun
        plans = [window.plan for window in day.windows]
        proven = sum(item.status == "optimal" for item in plans)
        gaps = [item.objective.gap for item in plans if item.objective.gap is not None]
        cells = (
            kind, f"{windows} × {models} × {gpus}", f"{seconds:g}", f"{wall:.1f}", f"{proven} of {windows}",
            f"{max(gaps, default=math.nan):.2%}", _text(day.gpu_hours.windows), _text(day.gpu_hours.static),
            _text(day.worst_normalised.windows), _text(day.worst_normalised.static),
            f"{median(w.transition.touched_gpus for w in day.windows if w.transition is not None):g}",
            f"{(day.lost_requests or 0.0) / _asked(request):.2%}",
        )  # fmt: skip
        print(row(cells), flush=True)


def _asked(request: PlanRequest) -> float:
    return sum(
        float(window.rate_rps("mean")) * window.hours * 3600
        for model in request.models
        for window in model.demand_windows
    )


@dataclass(frozen=True)
class Side:
    """A way to serve a trace: GPU-hours a day, and the share of its requests that is served."""

    name: str
    gpu_hours: float
    served: float
    touched: str = ""
    lost: str = ""


def services_request(trace: DemandTrace, gpus: int, seconds: float) -> tuple[PlanRequest, dict[str, float]]:
    """A measured model for each service, and factors of its rates with which each one's peak takes an equal part of 0.8
    of the fleet."""
    base = instance(11, gpus, seconds=seconds)
    models, factors = [], {}
    for model, (name, values) in zip(base.models, trace.rates.items(), strict=False):
        per_gpu = max(_rate_per_slice(model).values(), default=0.0)
        peak = max(value for value in values if value is not None)
        factors[name] = 0.8 * gpus / len(trace.rates) * per_gpu / peak
        models.append(replace(model, name=name))
    request = PlanRequest(
        (FleetEntry(GPU, count=gpus),),
        tuple(models),
        objective=Objective("min_gpus"),
        solver=SolverOptions(seconds),
    )
    return request, factors


def _rate_per_slice(model: PlanModel) -> Mapping[str, float]:
    """Requests/s of a GPU full of one profile, by profile."""
    kind = gpu_type(GPU)
    best: dict[str, float] = {}
    for point in model.points:
        count = kind.memory_slices // kind.profile(point.profile).memory_slices
        while place_layout(kind, (point.profile,) * count) is None:
            count -= 1
        best[point.profile] = max(best.get(point.profile, 0.0), count * point.throughput_rps)
    return best


def windows_side(
    request: PlanRequest, cut_from: DemandTrace, judged: DemandTrace, windows: int, room: float = 1.0
) -> Side:
    """The day cut from one trace, its demand times `room`, on another."""
    cut_from = _scaled(cut_from, dict.fromkeys(cut_from.rates, room))
    filled = with_demands_as_minima(with_trace_windows(request, cut_from, WindowSettings(windows))[0])
    day = workflow.plan_day(filled)
    name = "one plan" if windows == 1 else f"{windows} windows"
    name = name if room == 1 else f"{name} with {room:g} × the demand"
    if day.gpu_hours.windows is None:
        return Side(f"{name}: {day.status}", math.nan, math.nan)
    lost = (day.lost_requests or 0.0) * judged.days / _arrivals(judged)
    touched = [w.transition.touched_gpus for w in day.windows if w.transition is not None]
    served = _served(filled, day, judged) - lost
    return Side(name, day.gpu_hours.windows, served, f"{sum(touched)}", f"{day.lost_requests or 0.0:.4g}")


def _scaled(trace: DemandTrace, factors: Mapping[str, float]) -> DemandTrace:
    """The trace with each service's rates times its factor."""
    rates = {
        name: tuple(None if value is None else value * factors[name] for value in values)
        for name, values in trace.rates.items()
    }
    return replace(trace, rates=rates)


def _served(request: PlanRequest, day: DayOutcome, trace: DemandTrace) -> float:
    """Of the requests of a trace the share below the throughput of the window's plan."""
    windows = request.models[0].demand_windows
    rates = [{model.name: model.throughput_rps for model in window.plan.models} for window in day.windows]
    total = 0.0
    for moment in range(trace.moments):
        minute = (trace.first_s + moment * trace.step_s) % DAY_S // 60
        number = next(
            at
            for at, window in enumerate(windows)
            if (minute - window.minutes[0]) % (24 * 60) < window.minutes[1]
        )
        for name, values in trace.rates.items():
            value = values[moment]
            total += 0.0 if value is None else min(value, rates[number].get(name, 0.0)) * trace.step_s
    return total / _arrivals(trace)


def _arrivals(trace: DemandTrace) -> float:
    return sum(
        value * trace.step_s for values in trace.rates.values() for value in values if value is not None
    )


def rule_side(request: PlanRequest, trace: DemandTrace, target: float) -> Side:
    """Replicas that follow the load of the step before, packed first fit, largest slices first."""
    kind = gpu_type(GPU)
    chosen = {}
    for model in request.models:
        per_gpu = _rate_per_slice(model)
        profile = max(per_gpu, key=lambda name: per_gpu[name])
        chosen[model.name] = max(
            (point.throughput_rps, profile) for point in model.points if point.profile == profile
        )
    hours, total = 0.0, 0.0
    before: dict[str, float] = {name: values[-1] or 0.0 for name, values in trace.rates.items()}
    for moment in range(trace.moments):
        counts = {name: max(1, math.ceil(before[name] / (target * chosen[name][0]))) for name in trace.rates}
        slices = [chosen[name][1] for name, count in counts.items() for _ in range(count)]
        hours += len(_packed(kind.name, slices)) * trace.step_s / 3600
        for name, values in trace.rates.items():
            value = values[moment]
            if value is not None:
                total += min(value, counts[name] * chosen[name][0]) * trace.step_s
                before[name] = value
    return Side(f"rule at {target:.0%}", hours / trace.days, total / _arrivals(trace))


def _packed(kind: str, profiles: Sequence[str]) -> list[tuple[str, ...]]:
    """GPUs with these slices, first fit, the largest first."""
    gpu = gpu_type(kind)
    gpus: list[tuple[str, ...]] = []
    for profile in sorted(profiles, key=lambda name: -gpu.profile(name).memory_slices):
        for number, held in enumerate(gpus):
            if _fits(kind, (*held, profile)):
                gpus[number] = (*held, profile)
                break
        else:
            gpus.append((profile,))
    return gpus


_FITTING: dict[tuple[str, ...], bool] = {}


def _fits(kind: str, profiles: tuple[str, ...]) -> bool:
    key = tuple(sorted(profiles))
    if key not in _FITTING:
        _FITTING[key] = place_layout(gpu_type(kind), key) is not None
    return _FITTING[key]


def services_table(
    title: str, cut_from: DemandTrace, judged: DemandTrace, options: argparse.Namespace
) -> None:
    """Print every side of a trace."""
    request, factors = services_request(cut_from, options.fleet, options.day_seconds)
    scaled = _scaled(cut_from, factors)
    judged_days, judged = judged, _scaled(judged, factors)
    print(f"\n{title}\n")
    columns = (
        "serves",
        "GPU-hours a day",
        "requests served",
        "GPUs touched a day",
        "requests lost in transitions a day",
    )
    print(heading(columns))
    sides = [windows_side(request, scaled, judged, count) for count in options.windows]
    if judged_days is not cut_from:
        sides += [windows_side(request, scaled, judged, ROOM_WINDOWS, room) for room in ROOMS]
    for side in (*sides, *(rule_side(request, judged, target) for target in TARGETS)):
        cells = (side.name, f"{side.gpu_hours:.1f}", f"{side.served:.3%}", side.touched, side.lost)
        print(row(cells), flush=True)


def _days(trace: DemandTrace, first: int, beyond: int) -> DemandTrace:
    begin, end = (day * DAY_S // trace.step_s for day in (first, beyond))
    rates = {name: values[begin:end] for name, values in trace.rates.items()}
    return replace(trace, first_s=trace.first_s + begin * trace.step_s, rates=rates)


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=list(SCALE))
    parser.add_argument(
        "--size", nargs=3, type=int, default=[24, 16, 64], metavar=("WINDOWS", "MODELS", "GPUS")
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--day-seconds", type=float, default=20.0, help="of a day of services")
    parser.add_argument("--windows", nargs="*", type=int, default=list(SERVICES))
    parser.add_argument("--fleet", type=int, default=FLEET)
    options = parser.parse_args()
    plan(instance(2, 1, seconds=1.0))  # loads what a first plan loads
    windows, models, gpus = options.size
    scale_table(options.kinds, windows, models, gpus, options.seconds)
    day = read_demand_trace((ROOT / "examples" / "days" / "five_services.csv").read_text())
    services_table("Five services, a day; cut and judged on the same day:", day, day, options)
    week = read_demand_trace((ROOT / "benchmarks" / "data" / "llm_demand_week.csv").read_text())
    week = without_zeros(week)
    services_table(
        "Three services, a week; cut from five days, judged on the two that follow:",
        _days(week, 0, 5),
        _days(week, 5, 7),
        options,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
