"""Days planned: time at scale, and GPU-hours and requests served of windows, one plan and a rule that scales by load.

At scale: models of `planner_instances` whose demand is a cosine over the day with a peak and a depth of its own, in
equal windows. Wall seconds are those of plan_day, its check included.

Services: the rates are those of production services (examples/days, benchmarks/data), the models are not: each service
is a measured model of the A100 library, scaled so that its largest demand takes an equal part of the fleet. Windows are
cut from the trace (demand: the largest of a window), every demand is a minimum, fewest GPUs. Served: of the requests of
the trace those below the throughput of what runs, step by step, less what transitions lose. The rule is what people do:
replicas of each model on the slice of which a full GPU serves most requests/s, as many as keep the utilisation of the
step before at a target (ceil, as HPA does), packed first fit; it loses nothing when it changes, which favours it.

To the request: the same day under the latency objectives of the published mixes, with queues, batches, steps of changes
and replicas that take their time to start (`simulate DAY --trace`); attainment is of the whole response.
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
from torchsplit_core.day_plans.replay.replicas import FirstFit, Replica, best_replica, replicas_by_load
from torchsplit_core.day_plans.replay.sides import ReplaySettings
from torchsplit_core.day_plans.window_requests import with_demands_as_minima
from torchsplit_core.planning import plan
from torchsplit_core.profiling.library import LATENCY_SHARE_OF_SLO
from torchsplit_core.tables.demand_trace.request_windows import (
    WindowSettings,
    with_trace_windows,
    without_zeros,
)
from torchsplit_core.tables.demand_trace.trace_csv import DAY_S, DemandTrace, read_demand_trace
from torchsplit_core.values import (
    DayOutcome,
    DayReplay,
    DemandWindow,
    FleetEntry,
    Objective,
    PlanModel,
    PlanRequest,
    ReplaySide,
    SolverOptions,
    ThresholdRule,
)
from torchsplit_core.values.day.replay import SideName

ROOT = Path(__file__).resolve().parent.parent
GPU = "A100-80GB"
SCALE = ("min_gpus", "leximin")
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
FLEET = 32
SERVICES = (1, 2, 3, 4, 6, 12, 24)
"""Numbers of windows."""
ROOMS, ROOM_WINDOWS = (1.05, 1.1, 1.2), 4
"""Times the demand that windows are cut from, where they are judged on other days."""
PARTS = ("scale", "services", "replay")
REPLAYED = ((4, 1.0), (12, 1.0), (12, 1.1))
"""Windows, and times the demand that they are cut from, of the days that are simulated to the request."""


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


def services_request(
    trace: DemandTrace, gpus: int, seconds: float, *, limits: bool = False
) -> tuple[PlanRequest, dict[str, float]]:
    """A measured model for each service, and factors of its rates with which each one's peak takes an equal part of 0.8
    of the fleet. `limits`: with the latency objectives of the mixes."""
    base = instance(11, gpus, seconds=seconds, limits=limits)
    models, factors = [], {}
    for model, (name, values) in zip(base.models, trace.rates.items(), strict=False):
        per_gpu = _replica(base, model).per_gpu_rps
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
    rule = ThresholdRule(target, tolerance=0.0, stabilisation_s=0.0)
    replicas = {model.name: _replica(request, model) for model in request.models}
    counts = {
        # The load of the step before: of the first step that of the last.
        name: replicas_by_load((values[-1] or 0.0, *values), replicas[name].rate_rps, rule, trace.step_s)
        for name, values in trace.rates.items()
    }
    packing = FirstFit()
    hours, total = 0.0, 0.0
    for moment in range(trace.moments):
        placed = [(replicas[name].place, count[moment]) for name, count in counts.items()]
        hours += packing.gpus(placed) * trace.step_s / 3600
        for name, values in trace.rates.items():
            total += min(values[moment] or 0.0, counts[name][moment] * replicas[name].rate_rps) * trace.step_s
    return Side(f"rule at {target:.0%}", hours / trace.days, total / _arrivals(trace))


def _replica(request: PlanRequest, model: PlanModel) -> Replica:
    replica = best_replica(request, model)
    assert replica is not None
    return replica


def replay_table(trace: DemandTrace, options: argparse.Namespace) -> None:
    """Print every side of a day, simulated to the request over its trace, under the objectives of the mixes."""
    request, factors = services_request(trace, options.fleet, options.day_seconds, limits=True)
    scaled = _scaled(trace, factors)
    limits = {
        model.name: model.max_latency_ms / LATENCY_SHARE_OF_SLO
        for model in request.models
        if model.max_latency_ms is not None
    }
    print("\nFive services, the same day to the request, within the objectives of the published mixes:\n")
    columns = (
        "serves", "GPU-hours a day", "within limits", "in changes", "at other times", "worst model within limits",
        "requests lost", "seconds of changes", "requests simulated",
    )  # fmt: skip
    print(heading(columns))
    settings = ReplaySettings(replications=1, requests_per_model=options.requests, limits_ms=limits)
    for windows, room in REPLAYED:
        cut_from = _scaled(scaled, dict.fromkeys(scaled.rates, room))
        filled = with_demands_as_minima(with_trace_windows(request, cut_from, WindowSettings(windows))[0])
        day = workflow.plan_day(filled)
        alone: tuple[SideName, ...] = ("windows",) if windows == 4 else ("windows", "static")
        replay = workflow.replay_day(filled, day, scaled, replace(settings, sides=alone))
        named = f" with {room:g} × the demand" if room != 1 else ""
        for side in replay.sides:
            if side.name == "windows":
                _print_side(f"{windows} windows{named}", side, replay)
            else:
                _print_side(f"one plan{named}", side, replay)
    for target in TARGETS:
        ruled = replace(settings, rule=ThresholdRule(target), sides=("rule",))
        replay = workflow.replay_day(filled, day, scaled, ruled)
        _print_side(f"rule at {target:.0%}", replay.sides[0], replay)


def _print_side(name: str, side: ReplaySide, replay: DayReplay) -> None:
    def share(values: Sequence[tuple[float | None, float]]) -> str:
        known = [(value, weight) for value, weight in values if value is not None]
        total = sum(weight for _, weight in known)
        return f"{sum(value * weight for value, weight in known) / total:.3%}" if total else "n/a"

    models = side.models
    parts = [
        share([(getattr(model.attainment, part), model.arrived_requests) for model in models])
        for part in ("all", "in_transitions", "outside")
    ]
    worst = min((model.attainment.all for model in models if model.attainment.all is not None), default=None)
    cells = (
        name, _text(side.gpu_hours), *parts, "n/a" if worst is None else f"{worst:.3%}",
        f"{sum(model.lost_requests for model in models):.4g}", _text(side.transition_s),
        f"{sum(model.simulated_requests for model in models):,}",
    )  # fmt: skip
    print(row(cells), flush=True)


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
    parser.add_argument(
        "--requests", type=int, default=1_000_000, help="of a model, on average, to the request"
    )
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    options = parser.parse_args()
    plan(instance(2, 1, seconds=1.0))  # loads what a first plan loads
    if "scale" in options.parts:
        windows, models, gpus = options.size
        scale_table(options.kinds, windows, models, gpus, options.seconds)
    day = read_demand_trace((ROOT / "examples" / "days" / "five_services.csv").read_text())
    if "services" in options.parts:
        services_table("Five services, a day; cut and judged on the same day:", day, day, options)
    if "replay" in options.parts:
        replay_table(day, options)
    if "services" in options.parts:
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
