"""Throughput against latency of one pipeline: points, how many are proven, the widest gap, seconds.

Requests first, whose curve is checked from the request alone, in seconds of a pass; then instances of
`placement_search`, in units of throughput and of 1,000 tokens a pass, whose pipelines are reckoned again from the
instance. Each in a process of its own. `complete`: no pipeline is missing between the points. Ends with 1 where a
point breaks its rules, which a curve that failed its check does too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.placement_search import CASES, noisy_nodes

# The tests' oracle: it shares nothing with the search.
from tests.support.placement.search_cases import worth_of
from torchsplit_core.files import read_file
from torchsplit_core.placement.frontier import frontier
from torchsplit_core.placement.frontier.curve_search import trace_frontier
from torchsplit_core.placement.latency.pipeline_plan import PassCosts
from torchsplit_core.placement.request.build import build_request
from torchsplit_core.values import PlacementRequest

ROOT = Path(__file__).resolve().parent.parent


def _example(name: str) -> PlacementRequest:
    found: PlacementRequest = read_file(ROOT / "examples" / "placements" / f"{name}.json")[1]
    return found


def _llama() -> PlacementRequest:
    """Decode of Llama 3.1 405B on 64 nodes of 8 H100 and 64 of 8 A100."""
    fleet = "64x8xH100-SXM5-80GB,64x8xA100-80GB"
    return build_request("llama-3.1-405b", fleet, batch_size=64, max_gpus_per_segment=4)


REQUESTS: dict[str, Callable[[], PlacementRequest]] = {
    "14 x 30, published": lambda: _example("thirty_gpus"),
    "80 x 16, decode_70b": lambda: _example("decode_70b"),
    "126 x 1,024, Llama 405B": _llama,
}
INSTANCES = (
    "14 x 30, 3 a segment",
    "80 x 65 in 12 nodes",
    "126 x 1,024 in tiers",
    "126 x 1,024, slow tiers",
    "126 x 1,024, network cards",
    "126 x 1,024, slow inside nodes",
    "80 x 65 arbitrary, 1",
    "80 x 65 noisy nodes, 3",
)
NOISY = {
    f"80 x 65 noisy nodes, 3, seed {seed}": partial(noisy_nodes, 65, 80, 3, seed)
    for seed in (*range(1, 7), 8, 9, 10)
}


def measure(name: str, limit_s: float) -> dict[str, object]:
    """Trace one case's curve in this process."""
    if name in REQUESTS:
        request = REQUESTS[name]()
        request = replace(request, solver=replace(request.solver, time_limit_s=limit_s))
        started = time.monotonic()
        curve = frontier(request)
        seconds = time.monotonic() - started
        rows = [(one.throughput, one.latency_s, one.latency_bound_s, one.proven) for one in curve.points]
        return {"rows": rows, "complete": curve.complete, "seconds": seconds, "right": True}
    build = NOISY[name] if name in NOISY else CASES[name][0]
    instance, costs = build(), PassCosts(1000.0, 1.0)
    started = time.monotonic()
    traced = trace_frontier(instance, costs, time_limit_s=limit_s)
    seconds = time.monotonic() - started
    return {
        "rows": [(one.plan.throughput, one.plan.latency_s, one.bound_s, one.proven) for one in traced.points],
        "complete": traced.complete,
        "seconds": seconds,
        "right": all(worth_of(instance, one.plan.segments) == one.plan.throughput for one in traced.points),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = (*REQUESTS, *INSTANCES, *NOISY)
    parser.add_argument("--cases", nargs="*", choices=names, default=names, metavar="NAME")
    parser.add_argument("--limit", type=float, default=60.0, metavar="S")
    parser.add_argument("--child", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.limit)))
        return 0
    print(
        "| layers x GPUs | points | proven | widest gap, % | complete | throughput | latency, s | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    wrong = 0
    for name in options.cases:
        command = [sys.executable, "-m", "benchmarks.placement_frontier", "--child", name]
        command += ["--limit", str(options.limit)]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        rows = found["rows"]
        gap = max(0.0 if proven else 100 * (1 - bound / own) for _, own, bound, proven in rows)
        proven = sum(row[3] for row in rows)
        print(
            f"| {name} | {len(rows)} | {proven} | {gap:.2f} | {'yes' if found['complete'] else 'no'} "
            f"| {rows[0][0]:.1f} – {rows[-1][0]:.1f} | {rows[0][1]:.4g} – {rows[-1][1]:.4g} "
            f"| {found['seconds']:.1f} |",
            flush=True,
        )
        wrong += not found["right"]
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
