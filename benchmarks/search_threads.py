"""What a thread for each core brings: shares with hard co-locations on few GPUs, from the same plan of whole slices.

The published mix S3 with its five pairs, then drawn models under limits with three pairs on GPUs of five types. Each
side has the same seconds and bound, in turns; levels are in units of the plan of whole slices.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import mean

from benchmarks.fleet_instances import FIVE_TYPES, Family, fleet_instance
from benchmarks.pair_flows import paired
from benchmarks.planner_report import heading, row
from torchsplit_core.evaluation.mixes import mix
from torchsplit_core.planning import plan
from torchsplit_core.planning.fractional.colocated_contents import improve_colocated
from torchsplit_core.planning.outcome.assignment import build_planned_gpus
from torchsplit_core.planning.outcome.figures import unproven_outcome
from torchsplit_core.planning.problem.build import build_problem
from torchsplit_core.solver import parallel
from torchsplit_core.values import PlanOutcome, PlanRequest, PlanStatistics, SolverOptions

WHOLE_S, BOUND_S = 3.0, 3.0
"""Seconds for the plan of whole slices, and for the bound of shares without pairs."""


def requests(seeds: list[int]) -> Iterator[tuple[str, PlanRequest]]:
    """Requests by name."""
    published = mix("S3").request
    yield "S3, 11 × 5", replace(published, sharing="fractional", colocations=paired("S3", "hard", 5))
    family = Family(types=FIVE_TYPES, sharing="fractional", limits=True, pairs=3)
    for seed in seeds:
        for models, gpus in ((8, 8), (12, 6)):
            yield (
                f"drawn, {models} × {gpus}, seed {seed}",
                fleet_instance(models, gpus, seed=seed, family=family),
            )


def level(request: PlanRequest, whole: PlanOutcome, bound: float, threads: int, seconds: float) -> float:
    """The first level after so many seconds of this many threads."""
    problem, known = build_problem(request, per_gpu=True), whole.objective.value or 0.0
    default, parallel.MAX_THREADS = parallel.MAX_THREADS, threads
    try:
        assignment = improve_colocated(problem, whole.gpus, known, bound, time.perf_counter() + seconds)
    finally:
        parallel.MAX_THREADS = default
    if assignment is None:
        return known
    gpus = build_planned_gpus(request, assignment)
    return unproven_outcome(request, gpus, PlanStatistics(0.0, 0.0, 0.0, "none")).objective.value or 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    cores = parallel.thread_count()
    print(heading(("request", "whole slices", "one thread", f"{cores} threads", "ratio")))
    ratios = []
    for name, request in requests(options.seeds):
        timed = SolverOptions(WHOLE_S)
        whole = plan(replace(request, sharing="exclusive", solver=timed), reasons=False)
        free = plan(
            replace(request, colocations=(), solver=replace(timed, time_limit_s=BOUND_S)), reasons=False
        )
        if whole.objective.value is None or free.objective.bound is None:
            print(row((name, "–", "–", "–", "–")))
            continue
        sides: dict[int, list[float]] = {1: [], cores: []}
        for _ in range(options.turns):
            for threads, levels in sides.items():
                levels.append(level(request, whole, free.objective.bound, threads, options.seconds))
        alone, threaded = (mean(levels) / whole.objective.value for levels in (sides[1], sides[cores]))
        ratios.append(threaded / alone)
        print(row((name, 1, f"{alone:.3f}", f"{threaded:.3f}", f"{ratios[-1]:.3f}")), flush=True)
    if ratios:
        print(f"\nMean ratio: {mean(ratios):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
