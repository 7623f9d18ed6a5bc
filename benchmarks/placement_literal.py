"""Placements: the literal program against the exact search, in one run.

The published tiny case at each size of its segments first, with both ways to divide the batch. Then, for each size
(layers × GPUs × GPUs a segment), the literal program and the exact search on the same requests: one with the
published links, the others with random asymmetric ones around the segments' throughputs, so that they bind. Both
times are processor seconds of all of place(), its independent check included, in this process after both have run
once; both have one thread. The literal program is stopped after so many seconds of the clock, and what it took until
then counts; the exact search takes a median of its turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

from benchmarks.planner_report import ended, heading, row, same
from torchsplit_core.placement import place, violations
from torchsplit_core.values import (
    LinearCoefficients,
    LinearThroughput,
    PlacementGpu,
    PlacementModel,
    PlacementOutcome,
    PlacementRequest,
    PlacementSolver,
)

COEFFICIENTS = {
    "A100": LinearCoefficients(-0.01, 5.0, 2.0, 150.0),
    "V100": LinearCoefficients(-0.008, 3.0, 1.5, 100.0),
    "T4": LinearCoefficients(-0.005, 1.5, 0.8, 50.0),
}
MEMORY_GIB = {"A100": 80.0, "V100": 32.0, "T4": 16.0}
WITHIN = {"A100": 400.0, "V100": 300.0}
ACROSS = 200.0
GOALS = {(4, 4, 2): 300.0, (5, 6, 2): 1000.0}
"""Required speedup of the exact search over the literal program."""

LIMIT_S = 60.0


def request(layers: int, gpus: int, most: int, seed: int | None = None, **changes: Any) -> PlacementRequest:
    """The published tiny case, or one of another size (two A100, two V100, then T4); `seed` draws random links.

    Random links carry 0.2 to 3 times what an A100 does; memory then holds two or three layers.
    """
    types = ["A100", "A100", "V100", "V100", *["T4"] * gpus][:gpus]
    draw = random.Random(seed)

    def link(i: int, j: int) -> float:
        if i == j:
            return 0.0
        if seed is None:
            return WITHIN.get(types[i], ACROSS) if types[i] == types[j] else ACROSS
        return draw.uniform(0.2, 3.0) * 217.52 / 131072

    return PlacementRequest(
        PlacementModel(layers, 4096, 11008, 0.5 if seed is None else 6.0, 2048, 16),
        tuple(
            PlacementGpu(i, name, MEMORY_GIB[name] if seed is None else 20.0) for i, name in enumerate(types)
        ),
        LinearThroughput(COEFFICIENTS),
        tuple(tuple(link(i, j) for j in range(gpus)) for i in range(gpus)),
        max_gpus_per_segment=most,
        communication_efficiency=0.85,
        **changes,
    )


def timed(asked: PlacementRequest, method: str, seconds: float) -> tuple[float, PlacementOutcome]:
    """Processor seconds of place() with this method, and its outcome."""
    whole = replace(asked, solver=PlacementSolver(method, seconds))  # type: ignore[arg-type]
    begun = time.process_time()
    outcome = place(whole)
    return time.process_time() - begun, outcome


def tiny_table() -> list[str]:
    """The published case with 1 to 4 GPUs a segment."""
    lines = [
        heading(
            ("GPUs a segment", "equal parts, tokens/s", "on GPUs", "proportional parts, tokens/s", "on GPUs")
        )
    ]
    for most in range(1, 5):
        cells: list[object] = [most]
        for split in ("equal", "proportional"):
            outcome = place(request(4, 4, most, split=split))
            assert outcome.status == "optimal" and outcome.throughput is not None
            pipeline = "; ".join(", ".join(map(str, part.gpu_ids)) for part in outcome.segments)
            cells += [f"{outcome.throughput:.7g}", pipeline]
        lines.append(row(cells))
    return lines


def faults(asked: PlacementRequest, literal: PlacementOutcome, exact: PlacementOutcome) -> list[str]:
    """Contradictions between the two outcomes, and violations of either."""
    found = [*violations(asked, literal), *violations(asked, exact)]
    if exact.status != "optimal" or exact.throughput is None:
        return [*found, f"the exact search ended {exact.status}"]
    if literal.status == "optimal" and literal.throughput is not None:
        if not same(literal.throughput, exact.throughput):
            found.append(f"the literal optimum is {literal.throughput}, the exact one {exact.throughput}")
    elif literal.status == "infeasible":
        found.append("the literal program is infeasible, though there is a placement")
    elif literal.bound is not None and literal.bound < exact.throughput * (1 - 1e-6):
        found.append(f"the literal bound {literal.bound} is below {exact.throughput}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["4x4x2", "5x6x2"], metavar="LAYERSxGPUSxMOST")
    parser.add_argument(
        "--seeds", nargs="*", type=int, default=[0, 1], help="of the requests with random links"
    )
    parser.add_argument("--turns", type=int, default=9, help="of the exact search")
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="limit of either side, by the clock")
    options = parser.parse_args()
    for method in ("literal", "exact"):
        timed(request(2, 2, 1), method, options.seconds)
    print("\n".join(tiny_table()), end="\n\n")
    columns = (
        *("layers × GPUs × a segment", "links", "allocations", "connections", "variables"),
        *("literal s", "literal ended", "exact s", "exact ended", "ratio", "goal"),
    )
    print(heading(columns))
    wrong: list[str] = []
    for size in options.sizes:
        layers, gpus, most = (int(part) for part in size.split("x"))
        goal = GOALS.get((layers, gpus, most)) if options.seconds >= LIMIT_S else None
        for seed in (None, *options.seeds):
            asked = request(layers, gpus, most, seed)
            literal_s, literal = timed(asked, "literal", options.seconds)
            runs = [timed(asked, "exact", options.seconds) for _ in range(options.turns)]
            exact_s, exact = statistics.median(seconds for seconds, _ in runs), runs[-1][1]
            ratio = literal_s / exact_s
            told = "–" if goal is None else f"≥ {goal:g}{'' if ratio >= goal else ', missed'}"
            name = "published" if seed is None else f"random {seed}"
            cells = (
                *(f"{layers} × {gpus} × {most}", name),
                *(literal.statistics.get(key, "–") for key in ("allocations", "connections", "variables")),
                *(f"{literal_s:.2f}", ended(literal.status, literal.gap)),
                *(f"{exact_s:.4f}", ended(exact.status, exact.gap), f"{ratio:.0f}", told),
            )
            print(row(cells), flush=True)
            wrong += [f"{size}, {name}: {fault}" for fault in faults(asked, literal, exact)]
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
