"""Planning again after one change: 20 single changes of one request, each from the same base.

All in one process, after the base has been planned once. Seconds are those of plan(), its
independent check included; quantiles by nearest rank (of 20 the 19th is p95). The gap is the
outcome's, at the first level that is not proven; the first-level gap is 0 where that level is proven.
A change that ends without a plan in its time is counted and named; it has no gap.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from benchmarks.planner_instances import instance
from benchmarks.planner_report import gap_text, heading, nearest_rank, parse_size, row
from torchsplit_core.planning import plan, violations
from torchsplit_core.values import FleetEntry, PlanModel, PlanOutcome, PlanRequest

SIZE = (16, 64)
"""Models and GPUs for which the goals are set."""

GOALS_S = {"fractional": 0.2, "exclusive": 2.0}
"""Upper limits of the p95, in seconds."""


@dataclass
class Replans:
    """Seconds and gap of every change, changes without a plan, and faults."""

    seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    first_gaps: list[float] = field(default_factory=list)
    optimal: int = 0
    none: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def changes(base: PlanRequest, planned: PlanOutcome) -> Iterator[tuple[str, PlanRequest]]:
    """Yield 20 named requests that each differ from the base in one thing. Needs at least four models."""
    got = {model.name: model.throughput_rps for model in planned.models}
    count = len(base.models)
    (fleet,) = base.gpus

    def model(number: int, **fields: object) -> PlanRequest:
        models = list(base.models)
        models[number % count] = replace(models[number % count], **fields)  # type: ignore[arg-type]
        return replace(base, models=tuple(models))

    for number in range(3):
        demand = base.models[number].demand_rps
        yield f"demand of model {number} +20 %", model(number, demand_rps=1.2 * demand)
        other = base.models[(number + 5) % count].demand_rps
        yield f"demand of model {number + 5} −20 %", model(number + 5, demand_rps=0.8 * other)
    yield "weight of model 1 doubled", model(1, weight=2.0)
    yield "weight of model 2 halved", model(2, weight=0.5)
    yield "weight of model 3 +10 %", model(3, weight=1.1)
    yield "one GPU more", replace(base, gpus=(replace(fleet, count=fleet.count + 1),))
    yield "one GPU less", replace(base, gpus=(replace(fleet, count=fleet.count - 1),))
    yield "another GPU offers one layout", replace(base, gpus=(*_less_one(fleet), _whole(fleet)))
    for number in (0, 4):
        spec = base.models[number % count]
        yield (
            f"minimum of model {number} set to 90 % of what it has",
            model(number, min_throughput_rps=0.9 * got[spec.name]),
        )
    for number in (6, 7):
        yield f"model {number} capped at its demand", model(number, cap_at_demand=True)
    for number in (8, 9):
        yield f"best point of model {number} removed", model(number, variants=_without_best(base, number))
    yield "a latency limit for model 10", model(10, max_latency_ms=_median_latency(base, 10))
    yield "one model gone", replace(base, models=base.models[:-1])


def _less_one(fleet: FleetEntry) -> tuple[FleetEntry, ...]:
    return (replace(fleet, count=fleet.count - 1),)


def _whole(fleet: FleetEntry) -> FleetEntry:
    return FleetEntry(fleet.type, layouts=(("7g.80gb",),))


def _without_best(base: PlanRequest, number: int) -> object:
    spec: PlanModel = base.models[number % len(base.models)]
    (variant,) = spec.variants
    (stage,) = variant.stages
    best = max(stage.points, key=lambda point: point.throughput_rps)
    points = tuple(point for point in stage.points if point is not best)
    return (replace(variant, stages=(replace(stage, points=points),)),)


def _median_latency(base: PlanRequest, number: int) -> float:
    spec = base.models[number % len(base.models)]
    latencies = sorted(point.latency_ms for point in spec.variants[0].stages[0].points)
    return latencies[len(latencies) // 2]


def replan(base: PlanRequest) -> Replans:
    """Plan the base once, then every change of it."""
    first = plan(base)
    found = Replans()
    if not first.models:
        found.faults.append(f"the base has no plan: {first.status}")
        return found
    for name, request in changes(base, first):
        begun = time.perf_counter()
        outcome = plan(request)
        found.seconds.append(time.perf_counter() - begun)
        found.faults += [f"{name}: {fault}" for fault in violations(request, outcome)]
        if outcome.status == "infeasible":
            # The base's plan meets all minima, so every change has a plan.
            found.faults.append(f"{name}: called infeasible")
        objective = outcome.objective
        if objective.gap is None:
            found.none.append(f"{name}: {outcome.status}")
        else:
            found.gaps.append(objective.gap)
            found.first_gaps.append(0.0 if objective.proven_levels else objective.gap)
        found.optimal += outcome.status == "optimal"
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=SIZE, metavar="MxG")
    parser.add_argument("--fractional-seconds", type=float, default=0.15, help="limit of the search")
    parser.add_argument("--exclusive-seconds", type=float, default=1.5, help="limit of the search")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    models, gpus = options.size
    if models < 4 or gpus < 2:
        parser.error("the changes need four models and two GPUs or more")
    columns = (
        "models × GPUs",
        "sharing",
        "limit s",
        "changes",
        "p50 s",
        "p95 s",
        "goal s",
        "worst first-level gap",
        "worst gap",
        "optimal",
        "no plan",
    )
    print(heading(columns))
    wrong: list[str] = []
    missing: list[str] = []
    for sharing, seconds in (
        ("fractional", options.fractional_seconds),
        ("exclusive", options.exclusive_seconds),
    ):
        base = instance(models, gpus, seed=options.seed, sharing=sharing, seconds=seconds)  # type: ignore[arg-type]
        found = replan(base)
        wrong += [f"{sharing}: {fault}" for fault in found.faults]
        missing += [f"{sharing}: {name}" for name in found.none]
        if not found.seconds:
            continue
        p95 = nearest_rank(found.seconds, 0.95)
        goal = f"< {GOALS_S[sharing]:g}{'' if p95 < GOALS_S[sharing] else ', missed'}"
        cells = (
            f"{models} × {gpus}",
            sharing,
            f"{seconds:g}",
            len(found.seconds),
            f"{nearest_rank(found.seconds, 0.5):.3f}",
            f"{p95:.3f}",
            goal if options.size == SIZE else "–",
            gap_text(max(found.first_gaps, default=None)),
            gap_text(max(found.gaps, default=None)),
            found.optimal,
            len(found.none),
        )
        print(row(cells), flush=True)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    if missing:
        print("\nWithout a plan in the time given:", *missing, sep="\n- ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
