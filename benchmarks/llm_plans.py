"""LLMs in plans: how near the search ends to its bound on fleets with groups of GPUs, and fewest GPUs against rules.

Fleets have nodes of eight GPUs whose MIG mode the plan decides on. Points have random rates, so that the search is
measured alone: engines on slices, GPUs and groups of 2, 4 and 8, of LLMs of three sizes, the largest of which fit no
GPU alone; the others are batch models with random curves. Gap is that of the first level (0: proven). Each request is
planned in a process of its own; wall seconds are those of plan(), its check included.

Fewest GPUs: the requests of examples/llm with every demand as a minimum, planned with their engines simulated, against
rules with the same points: a whole GPU for each instance (where MIG is on its largest slice, for an LLM that fits none
the smallest group), and the smallest slice on which an instance runs, packed first fit.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.planner_report import answer_of_child, gap_text, heading, row, value_text
from torchsplit_core.hardware import gpu_type
from torchsplit_core.values import (
    WHOLE_GPU,
    EnginePoint,
    FleetEntry,
    LlmModel,
    LlmPoint,
    Objective,
    PlanModel,
    PlannedEngine,
    PlanRequest,
    Point,
    SolverOptions,
    Stage,
    Variant,
)

TYPES = {"A100-80GB": 1.0, "H100-SXM5-80GB": 1.8}
"""Types of the fleets, with how fast they are."""
PROFILES = {
    "A100-80GB": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H100-SXM5-80GB": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
}
LEAST_SLICES = {1: 2, 2: 4, 3: 8}
"""By size of an LLM the compute slices that it needs; 8: more than a GPU."""
NODE = 8
FAMILIES = {
    "4 LLMs, 12 batch models": (4, 12, 16, 20.0),
    "16 LLMs": (16, 0, 128, 60.0),
}
"""LLMs, batch models, GPUs and seconds, by name."""
EXAMPLES = ("chat_and_vision", "chat_beside_measured_mix", "70b_on_groups", "four_llms")
SEARCH_SHARE, GRACE_S = 0.95, 120.0


def drawn(llms: int, others: int, gpus: int, seconds: float, seed: int) -> PlanRequest:
    """A request of a family: half of the GPUs of each type."""
    rng = random.Random(seed)
    fleet = tuple(
        FleetEntry(kind, count=min(NODE, gpus // 2), node=f"{kind}-{node}", mig="either")
        for kind in TYPES
        for node in range(max(1, gpus // 2 // NODE))
    )
    models = [_llm(rng, number) for number in range(llms)] + [_batch(rng, number) for number in range(others)]
    return PlanRequest(
        fleet, tuple(models), objective=Objective("leximin"), solver=SolverOptions(SEARCH_SHARE * seconds)
    )


def _llm(rng: random.Random, number: int) -> PlanModel:
    size = rng.choice(tuple(LEAST_SLICES))
    points: list[EnginePoint] = []
    for kind, speed in TYPES.items():
        rate = rng.uniform(4.0, 6.0) * speed / size
        for profile in PROFILES[kind]:
            if (slices := int(profile[0])) >= LEAST_SLICES[size]:
                points.append(_engine(kind, profile, rate * slices / 7 * rng.uniform(0.8, 0.95)))
        for gpus in (1, 2, 4, 8):
            if gpus > 1 or LEAST_SLICES[size] < 8:
                points.append(_engine(kind, WHOLE_GPU, rate * gpus * rng.uniform(0.8, 1.1), gpus))
    given = tuple(
        LlmPoint(p.gpu_type, p.profile, p.throughput_rps, 1 if p.engine is None else p.engine.tensor_parallel)
        for p in points
    )
    return PlanModel(
        f"llm{number}", _variants(points), llm=LlmModel(None, points=given), demand_rps=rng.uniform(2.0, 10.0)
    )


def _engine(kind: str, profile: str, rate_rps: float, gpus: int = 1) -> EnginePoint:
    engine = PlannedEngine(gpus, None, None, 16, 64, 2048, None, True, None)
    return EnginePoint(kind, profile, 64, rate_rps, 10.0, engine=engine)


def _batch(rng: random.Random, number: int) -> PlanModel:
    points: list[Point] = []
    for kind, speed in TYPES.items():
        rate, bend = rng.uniform(50.0, 500.0) * speed, rng.uniform(0.7, 0.95)
        points += [
            Point(kind, profile, 8, rate * int(profile[0]) ** bend, 5.0)
            for profile in PROFILES[kind]
            if rng.random() < 0.85
        ]
        points.append(Point(kind, WHOLE_GPU, 8, rate * 7**bend, 5.0))
    return PlanModel(f"batch{number}", _variants(points), demand_rps=rng.uniform(50.0, 800.0))


def _variants(points: Sequence[Point]) -> tuple[Variant, ...]:
    return (Variant("whole", (Stage("whole", tuple(points)),)),)


def measure(name: str, seed: int) -> dict[str, object]:
    """Plan one request of a family in this process."""
    from torchsplit_core.planning import plan, violations

    llms, others, gpus, seconds = FAMILIES[name]
    request = drawn(llms, others, gpus, seconds, seed)
    begun = time.perf_counter()
    outcome = plan(request)
    wall_s = time.perf_counter() - begun
    objective = outcome.objective
    levels = objective.sorted_normalised or ()
    gap = 0.0 if objective.proven_levels else objective.gap
    return {
        "value": levels[0] if levels else None, "gap": gap, "status": outcome.status, "wall_s": wall_s,
        "groups": len({gpu.group for gpu in outcome.gpus if gpu.group}),
        "levels": objective.proven_levels, "faults": len(list(violations(request, outcome))),
    }  # fmt: skip


def fewest(name: str) -> dict[str, object]:
    """GPUs of a request of examples/llm that carry every demand: planned, and by the rules."""
    from tools.example_llms import llm_requests
    from torchsplit_core import workflow

    request = llm_requests()[name]
    models = tuple(replace(model, min_throughput_rps=model.demand_rps) for model in request.models)
    fleet = tuple(replace(entry, count=2 * entry.count) for entry in request.gpus)
    request = replace(request, gpus=fleet, models=models, objective=Objective("min_gpus"))
    resolved = workflow.with_engine_points(request)
    begun = time.perf_counter()
    outcome = workflow.plan(resolved)
    bound = outcome.objective.bound
    return {
        "gpus": sum(gpu.used for gpu in outcome.gpus) if outcome.objective.value is not None else None,
        "bound": None if bound is None else math.ceil(bound - 1e-6), "status": outcome.status,
        "wall_s": time.perf_counter() - begun, "each": whole_gpus(resolved), "smallest": packed_slices(resolved),
    }  # fmt: skip


def whole_gpus(request: PlanRequest) -> int:
    """GPUs if each instance has a whole one, or the fewest that hold an engine."""
    total = 0
    for model in request.models:
        whole = {_gpus(point): point for point in model.points if point.profile == WHOLE_GPU}
        if not whole:
            # A GPU that MIG cuts is one slice at most.
            largest = max(model.points, key=lambda point: point.throughput_rps)
            whole = {1: largest}
        least = min(whole)
        total += least * _instances(model, whole[least])
    return total


def packed_slices(request: PlanRequest) -> int:
    """GPUs if each instance has the smallest slice on which the model runs, first fit; else a group of its own."""
    kind = request.gpus[0].type
    slices: list[int] = []
    groups = 0
    for model in request.models:
        usable = [point for point in model.points if point.profile != WHOLE_GPU and point.gpu_type == kind]
        if not usable:
            least = min(model.points, key=_gpus)
            groups += _gpus(least) * _instances(model, least)
            continue
        slots = _memory_slices(kind)
        smallest = min(usable, key=lambda point: (slots[point.profile], -point.throughput_rps))
        best = max(
            (p for p in usable if p.profile == smallest.profile), key=lambda point: point.throughput_rps
        )
        slices += [slots[best.profile]] * _instances(model, best)
    left: list[int] = []
    for size in sorted(slices, reverse=True):
        place = next((number for number, free in enumerate(left) if free >= size), None)
        if place is None:
            left.append(8)
            place = len(left) - 1
        left[place] -= size
    return groups + len(left)


def _instances(model: PlanModel, point: Point) -> int:
    return math.ceil((model.min_throughput_rps or 0.0) / point.throughput_rps - 1e-9)


def _gpus(point: Point) -> int:
    return point.engine.tensor_parallel if isinstance(point, EnginePoint) and point.engine else 1


def _memory_slices(kind: str) -> Mapping[str, int]:
    return {profile.name: profile.memory_slices for profile in gpu_type(kind).profiles}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm_plans", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--examples", nargs="*", choices=EXAMPLES, default=EXAMPLES, metavar="NAME")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, seed = options.child
        json.dump(fewest(name) if seed == "fewest" else measure(name, int(seed)), sys.stdout)
        return 0
    faults = 0
    columns = ("family", "GPUs", "limit s", "seed", "status", "worst-served", "gap", "levels proven")
    print(heading((*columns, "groups", "wall s")))
    for name in options.families:
        _, _, gpus, seconds = FAMILIES[name]
        for seed in range(1, options.seeds + 1):
            answer = answer_of_child("llm_plans", ["--child", name, str(seed)], seconds + GRACE_S)
            faults += answer["faults"]
            print(
                row(
                    (
                        name, gpus, f"{seconds:g}", seed, answer["status"], value_text(answer["value"]),
                        gap_text(answer["gap"]), answer["levels"], answer["groups"], f"{answer['wall_s']:.1f}",
                    )
                ),
                flush=True,
            )  # fmt: skip
    print(f"\nFaults: {faults}\n")
    print(heading(("examples/llm", "planned", "bound", "whole GPU each", "smallest slice each", "wall s")))
    for name in options.examples:
        answer = answer_of_child("llm_plans", ["--child", name, "fewest"], 300.0)
        figures = (answer[key] for key in ("gpus", "bound", "each", "smallest"))
        print(row((name, *figures, f"{answer['wall_s']:.1f}")), flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
