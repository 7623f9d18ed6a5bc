"""Several pipelines at once: equal to a look at all sets of them, proven on a few nodes, bounded on large fleets.

First random small instances against the best set of disjoint pipelines found by going through all. Then fleets: those
of a decoder from its sizes, the last ones as in placement_search. `one` is the best single pipeline, in the units of
the fleet's throughput. Then further fleets of noisy nodes and of arbitrary links, as many as wanted. Ends with 1 when a
small instance differs, or when pipelines are not worth what is said.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from benchmarks.placement_search import CASES as LARGE
from benchmarks.placement_search import arbitrary, noisy_nodes
from tests.support.placement.replicas_oracle import best_sum, small_instance

# The tests' oracle: it shares nothing with the search.
from tests.support.placement.search_cases import MEMORY_GIB, NETWORKS, falling_value, worth_of
from torchsplit_core.placement.latency.in_flight import best_pipeline
from torchsplit_core.placement.model.instance import ProblemInstance
from torchsplit_core.placement.model.segments import SegmentModel, build_instance
from torchsplit_core.placement.replicas import PipelineSetResult, search_pipelines
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.placement.search.layer_assignment import pipeline_throughput

EQUAL = 1e-9
MANY = 4096


def _decode(fleet: str, most: int, network_gib_per_s: float) -> Callable[[], ProblemInstance]:
    def build() -> ProblemInstance:
        request = build_request(
            "llama-3.1-70b",
            fleet,
            batch_size=64,
            max_gpus_per_segment=most,
            network_gib_per_s=network_gib_per_s,
        )
        return build_instance(SegmentModel(request))

    return build


def _arbitrary() -> ProblemInstance:
    """GPUs of five kinds; links drawn independently, each direction too, so that no two GPUs are alike."""
    draw = np.random.default_rng(3)
    kinds = tuple(int(kind) for kind in draw.integers(0, len(MEMORY_GIB), 14))
    weights = sum(MEMORY_GIB[kind] for kind in kinds) / 4
    return ProblemInstance(
        40, kinds, draw.uniform(0, 400, (14, 14)), 2, falling_value(64, weights / 40, 0.05)
    )


CASES: dict[str, Callable[[], ProblemInstance]] = {
    "70B, 2 x 8 H100": _decode("2x8xH100-SXM5-80GB", 2, 11.6),
    "70B, 4 x 8 H100": _decode("4x8xH100-SXM5-80GB", 2, 11.6),
    "70B, 2 x 8 H100 and 2 x 8 A100": _decode("2x8xH100-SXM5-80GB,2x8xA100-80GB", 2, 11.6),
    "70B, 4 x 8 H100, 0.01 GiB/s between": _decode("4x8xH100-SXM5-80GB", 2, 0.01),
    "40 x 14 arbitrary, 2": _arbitrary,
    **{
        name: LARGE[name][0]
        for name in (
            "80 x 65 in 12 nodes",
            "80 x 65 arbitrary, 3",
            "80 x 65 noisy nodes, 3",
            "126 x 1,024 in tiers",
            "126 x 1,024, network cards",
        )
    },
}


def small(count: int) -> int:
    """Print how many random small instances equal the exhaustive search over sets; return how many do not."""
    wrong = 0
    print("| network | instances | equal | with two pipelines or more |")
    print("|---|---|---|---|")
    for shape, network in enumerate(NETWORKS):
        asked = equal = several = 0
        for seed in range(shape, count, len(NETWORKS)):
            instance = small_instance(seed)
            for most in (2, 3, MANY):
                best = best_sum(instance, min(most, 5))
                found = search_pipelines(instance, most, time_limit_s=60, progress=_silent)
                asked += 1
                equal += found.proven and abs(found.value - best) <= EQUAL * best and _right(instance, found)
                several += len(found.pipelines) > 1
        print(f"| {network} | {asked} | {equal} | {several} |", flush=True)
        wrong += asked - equal
    return wrong


def fleets(names: list[str], seconds: float) -> int:
    """Print a row for every fleet and number of pipelines; return how many are not worth what the search says."""
    wrong = 0
    print("| fleet | at most | pipelines | GPUs | sum | bound | gap, % | one | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        instance = CASES[name]()
        one = best_pipeline(instance, time_limit_s=seconds)
        for most in (4, MANY):
            started = time.monotonic()
            found = search_pipelines(instance, most, time_limit_s=seconds, progress=_silent)
            taken = time.monotonic() - started
            gpus = sum(len(chosen) for pipeline in found.pipelines for _, chosen in pipeline)
            gap = 100 * (1 - found.value / found.bound)
            print(
                f"| {name} | {most if most < MANY else 'any'} | {len(found.pipelines)} | {gpus} of "
                f"{len(instance.kinds)} | {found.value:.1f} | {found.bound:.1f} | {gap:.2f} | {one.value:.1f} "
                f"| {taken:.1f} |",
                flush=True,
            )
            wrong += not _right(instance, found)
    return wrong


def family(name: str, build: Callable[[int], ProblemInstance], count: int, seconds: float) -> int:
    """Print a row for each of so many fleets of a family, by seed; return how many are not worth what is said."""
    wrong, gaps = 0, []
    print(f"| {name}, seed | pipelines | GPUs | sum | bound | gap, % |")
    print("|---|---|---|---|---|---|")
    for seed in range(1, count + 1):
        instance = build(seed)
        found = search_pipelines(instance, MANY, time_limit_s=seconds, progress=_silent)
        gpus = sum(len(chosen) for pipeline in found.pipelines for _, chosen in pipeline)
        gaps.append(100 * (1 - found.value / found.bound))
        print(
            f"| {seed} | {len(found.pipelines)} | {gpus} of 65 | {found.value:.1f} | {found.bound:.1f} "
            f"| {gaps[-1]:.2f} |",
            flush=True,
        )
        wrong += not _right(instance, found)
    if gaps:
        print(f"\nGap: median {median(gaps):.2f} %, largest {max(gaps):.2f} %\n")
    return wrong


def _right(instance: ProblemInstance, found: PipelineSetResult) -> bool:
    """Whether the pipelines are disjoint and worth what the search says."""
    gpus = [gpu for pipeline in found.pipelines for _, chosen in pipeline for gpu in chosen]
    # Limits of a pipeline as a whole are computed by the search's code; place() checks them from the request.
    worth_here = worth_of if instance.flight is None else pipeline_throughput
    total = sum(worth_here(instance, pipeline) for pipeline in found.pipelines)
    return len(gpus) == len(set(gpus)) and abs(total - found.value) <= EQUAL * total


def _silent(value: float, bound: float) -> None:
    """Discard the progress."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=500)
    parser.add_argument("--cases", nargs="*", choices=tuple(CASES), default=list(CASES), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each search")
    parser.add_argument("--noisy", type=int, default=10, metavar="N", help="fleets of noisy nodes")
    parser.add_argument("--arbitrary", type=int, default=3, metavar="N", help="fleets of arbitrary links")
    options = parser.parse_args()
    wrong = small(options.random)
    print()
    wrong += fleets(options.cases, options.seconds)
    print()
    families = (
        ("80 x 65 noisy nodes, 3", lambda seed: noisy_nodes(65, 80, 3, seed), options.noisy),
        ("80 x 65 arbitrary, 3", lambda seed: arbitrary(65, 80, 3, seed), options.arbitrary),
    )
    for name, build, count in families:
        wrong += family(name, build, count, options.seconds)
    print(f"Faults: {wrong}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
