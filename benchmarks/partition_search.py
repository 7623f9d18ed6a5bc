"""What the search for partitions reaches: least largest load, proven bound, gap, seconds.

Public costed graphs against their best known loads, random small graphs with groups and
memory limits against a look at every assignment, and large graphs at a time limit. Ends with
1 when a known load is missed, a small graph differs or a large one gives no candidate.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

from benchmarks.partition_graphs import SHAPES, shaped_request

# The tests' oracle: it shares nothing with the searches.
from tests.support.partitioning.cases import least_load, load_request, random_request
from torchsplit_core.partitioning import solve_partition
from torchsplit_core.values import PartitionRequest

PUBLIC = {"bert24_layers_k6": 17.79, "resnet50_layers_k6": 34.22, "bert3_operators_k3": 27.92}
_DEVICES = 6


def line(name: str, request: PartitionRequest, known_ms: float | None) -> bool:
    """Solve and print one row; False if a known load is missed or there is no candidate."""
    started = time.monotonic()
    outcome = solve_partition(request)
    seconds = time.monotonic() - started
    value = outcome.candidates[0].max_load_ms if outcome.candidates else math.inf
    cells = (
        name,
        len(request.nodes),
        request.devices.count,
        f"{value:.2f}",
        f"{outcome.bound_ms or 0:.2f}",
        "" if outcome.gap is None else f"{100 * outcome.gap:.2f}",
        outcome.status,
        f"{seconds:.1f}",
        "" if known_ms is None else known_ms,
    )
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return value < math.inf and (known_ms is None or abs(value - known_ms) < 0.01)


def small(count: int) -> int:
    """Print how many random small requests equal the exhaustive search; return how many do not."""
    equal = infeasible = 0
    for seed in range(count):
        request = random_request(seed, contiguous=seed % 4 != 3)
        expected = least_load(request)
        outcome = solve_partition(request)
        if expected is None:
            infeasible += 1
            equal += outcome.status == "infeasible"
        else:
            equal += outcome.status == "optimal" and math.isclose(
                outcome.candidates[0].max_load_ms, expected, rel_tol=1e-6, abs_tol=1e-9
            )
    print(
        f"| {count} random of up to 8 nodes: {equal} equal a look at every assignment ({infeasible} infeasible) "
        "| | | | | | | | |"
    )
    return count - equal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=tuple(SHAPES))
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(
        "| graph | nodes | devices | largest load, ms | bound, ms | gap, % | status | seconds | known, ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    fine = [line(name, load_request(f"{name}.json"), known) for name, known in PUBLIC.items()]
    wrong = small(options.random) if options.random else 0
    for nodes in options.sizes:
        for shape in options.shapes:
            fine.append(line(shape, shaped_request(shape, nodes, _DEVICES, options.seconds), None))
    return int(wrong > 0 or not all(fine))


if __name__ == "__main__":
    sys.exit(main())
