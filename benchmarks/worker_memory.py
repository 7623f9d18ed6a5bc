"""What workers of served plans hold in all, against the memory that their plans counted for them.

Samples and models of `served_models`, profiled on one core and served by 1, 2 and 4 workers (slices of one core; where
the host has fewer, cores in turn), each worker warmed up at its batch size and loaded for some seconds. Held is read
from the kernel, of all processes that the front has started for its workers: the proportional set size (PSS: pages
that are shared divided among those that share them) and its anonymous part, and by how much MemAvailable fell, which
counts whatever else went on here meanwhile. Prints a Markdown table; ends with 1 where what a plan counts is further
from what one more worker adds than the goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.served_models import SOURCE
from torchsplit_core import workflow
from torchsplit_core.planning.request.build import build_request
from torchsplit_core.profiling.points import MeasurementSettings
from torchsplit_core.serving.load_test.session import send_load, serving_session
from torchsplit_core.serving.settings import ServeSettings
from torchsplit_core.values import FleetEntry, PlanOutcome, PlanRequest, Profile, ignore_progress

MODELS = (
    "sample:ocr",
    "sample:bert",
    "sample:resnet50",
    f"{SOURCE}:BertClient",
    f"{SOURCE}:ClipClient",
    f"{SOURCE}:WideClient",
)
WORKERS = (1, 2, 4)
BATCH = 4
POINT_BUDGET_S = 1.0
GOAL = 0.15
REQUESTS, GAP_S = 60, 0.03
MIB = 2**20


def plan_of(profile: Profile, workers: int) -> tuple[PlanRequest, PlanOutcome]:
    """A plan in which every core is a slice with one worker of the model."""
    request = build_request([profile], (FleetEntry(f"CPU-{workers}c"),))
    (model,) = request.models
    # more demand than all workers can serve, so that none stays idle
    most = max(point.throughput_rps for point in model.variants[0].stages[0].points)
    request = replace(request, models=(replace(model, demand_rps=10 * workers * most),))
    return request, workflow.plan(request)


def held(request: PlanRequest, plan: PlanOutcome) -> tuple[int, float, float, float]:
    """Number of workers, and MiB: their PSS, its anonymous part, and the fall of MemAvailable."""
    before = available()
    settings = ServeSettings(port=0, trust=True, stand_in="cpu")
    with serving_session(plan, request, settings, ignore_progress) as server:
        name = request.models[0].name
        times = [GAP_S * number for number in range(REQUESTS)]
        send_load(server, {name: server.example_request(name)}, {name: times}, [])
        time.sleep(1.0)
        own = [rollup(pid) for pid in workers_here()]
        fell = before - available()
    # Beside each worker runs a supervisor, which does not load torch.
    count = sum(one["Pss_Anon"] > 64 * MIB for one in own)
    pss, anonymous = (sum(one[name] for one in own) / MIB for name in ("Pss", "Pss_Anon"))
    return count, pss, anonymous, fell / MIB


def workers_here() -> list[int]:
    """Processes started by the front ends that this process runs."""
    parents = {}
    fronts = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            if "torchsplit_core.serving.frontend" in path.with_name("cmdline").read_text().split("\0"):
                fronts.add(int(path.parent.name))
        except OSError:  # the process has ended
            continue
    me = int(Path("/proc/self").resolve().name)
    found = {pid for pid in fronts if parents.get(pid) == me}
    front = set(found)
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return sorted(found - front)


def rollup(pid: int) -> dict[str, int]:
    """Fields of /proc/PID/smaps_rollup, in bytes."""
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines if line[-1] == "kB"}


def available() -> int:
    """MemAvailable of this host, bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def rows(source: str, counts: tuple[int, ...]) -> Iterator[str]:
    """One model's rows, by number of workers."""
    _, profile = workflow.profile(
        source, device="cpu:1c", batch_sizes=(BATCH,), trust=True, gpu_types=("A100-80GB",),
        settings=MeasurementSettings(point_budget_s=POINT_BUDGET_S),
    )  # fmt: skip
    (row,) = (one for one in profile.rows if one.basis == "measured")
    parts = row.memory_parts_gib
    assert parts is not None
    tensors = 1024 * (parts.weights + parts.activations + parts.transient)
    known: tuple[int, float] | None = None
    for wanted in counts:
        request, plan = plan_of(profile, wanted)
        count, pss, anonymous, fell = held(request, plan)
        counted = 1024 * sum(
            tenant.memory_gib or 0.0 for gpu in plan.gpus for item in gpu.slices for tenant in item.tenants
        )
        more = "—"
        if known is not None and count > known[0]:
            added = (pss - known[1]) / (count - known[0])
            more = f"{added:.0f}"
            RATIOS.append((source, counted / count / added))
        known = known or (count, pss)
        yield (
            f"| {source.rpartition('/')[2]} | {count} | {tensors:.0f} | {counted / count:.0f} | {counted:.0f} | "
            f"{anonymous:.0f} | {counted / anonymous:.2f} | {pss:.0f} | {counted / pss:.2f} | {more} | {fell:.0f} |"
        )


RATIOS: list[tuple[str, float]] = []
"""Ratios of what a plan counts for a worker to the PSS that one more worker adds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--workers", nargs="+", type=int, default=list(WORKERS))
    options = parser.parse_args()
    print(
        "| model | workers | tensors of one, MiB | planned for one | planned for all | anonymous memory of all | "
        "planned / anonymous | PSS of all | planned / PSS | one more adds to PSS | MemAvailable fell by |"
    )
    print("|---" * 11 + "|")
    for source in options.models:
        for line in rows(source, tuple(sorted(options.workers))):
            print(line, flush=True)
    missed = [(source, ratio) for source, ratio in RATIOS if abs(ratio - 1) > GOAL]
    if missed:
        print(
            "Further off than the goal: " + "; ".join(f"{source} {ratio:.2f}" for source, ratio in missed),
            file=sys.stderr,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
