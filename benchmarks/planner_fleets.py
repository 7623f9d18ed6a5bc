"""Plans of 64 models on mixed fleets of random curves: how far each family ends from its bound, over seeds.

Families and requests: benchmarks/fleet_instances.py. Every request is planned in a process of its own; wall seconds are
those of plan(), its independent check included, and the search gets 95 % of the seconds. Gap is that of the first level
(0 where it is proven), or of the cost; "first" is the value of the plan that stood after 2 s, relative to the last one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.fleet_instances import FIVE_TYPES, ONE_TYPE, TWO_TYPES, Family, fleet_instance
from benchmarks.planner_report import answer_of_child, gap_text, heading, row

FAMILIES = {
    "three types": (64, 256, 30, Family()),
    "five types": (64, 256, 30, Family(types=FIVE_TYPES)),
    "some layouts": (64, 256, 30, Family(types=FIVE_TYPES, restricted=True)),
    "nodes, limits": (64, 256, 30, Family(nodes=True, limits=True)),
    "1,024 GPUs": (64, 1024, 60, Family(types=FIVE_TYPES)),
    "least cost": (64, 256, 30, Family(types=FIVE_TYPES, kind="min_gpus", costs=True, minima=4.0)),
    "shared, memory": (64, 256, 30, Family(sharing="fractional")),
    "eight pairs": (64, 256, 20, Family(pairs=8)),
    "four pairs": (16, 64, 20, Family(pairs=4)),
    "limits, pairs": (8, 8, 20, Family(types=FIVE_TYPES, limits=True, pairs=3)),
    "limits, pairs on four": (8, 4, 20, Family(types=FIVE_TYPES, limits=True, pairs=3)),
    "limits, pairs, two types": (12, 6, 20, Family(types=TWO_TYPES, limits=True, pairs=4)),
    "limits, pairs, one type": (12, 6, 20, Family(types=ONE_TYPE, limits=True, pairs=4)),
    "shared, limits, pairs": (8, 8, 20, Family(types=FIVE_TYPES, sharing="fractional", limits=True, pairs=3)),
    "shared, least cost": (
        8,
        8,
        20,
        Family(sharing="fractional", kind="min_gpus", costs=True, minima=0.3, limits=True),
    ),
    "shared, pairs": (64, 256, 20, Family(sharing="fractional", pairs=8)),
    "survives": (64, 256, 20, Family(survives=True, minima=4.0)),
    "shared, survives": (64, 256, 20, Family(sharing="fractional", survives=True, minima=1.0)),
    "survives on six": (8, 6, 20, Family(types=FIVE_TYPES, survives=True, minima=0.2, limits=True)),
    "shared, survives on six": (
        8,
        6,
        20,
        Family(types=FIVE_TYPES, sharing="fractional", survives=True, minima=0.2, limits=True),
    ),
    "shared, limits": (8, 4, 20, Family(sharing="fractional", limits=True)),
}
"""Models, GPUs, seconds, and what the requests have, by name."""

SEARCH_SHARE, EARLY_S, GRACE_S = 0.95, 2.0, 120.0


Size = tuple[int, int, float]
"""Models, GPUs, seconds."""


def measure(name: str, size: Size, seed: int) -> dict[str, object]:
    """Plan one request in this process."""
    from torchsplit_core.planning import plan, violations

    models, gpus, seconds = size
    family = FAMILIES[name][3]
    request = fleet_instance(models, gpus, seed=seed, family=family, seconds=SEARCH_SHARE * seconds)
    begun = time.perf_counter()
    early: list[float] = []

    def stood(outcome: object) -> None:
        if time.perf_counter() - begun <= EARLY_S:
            early.append(outcome.objective.value)  # type: ignore[attr-defined]

    outcome = plan(request, on_plan=stood, reasons=False)
    wall = time.perf_counter() - begun
    value = outcome.objective.value
    return {
        "wall_s": wall,
        "status": outcome.status,
        "gap": 0.0 if outcome.objective.proven_levels else outcome.objective.gap,
        "early": early[-1] / value if early and value else None,
        "faults": [f"{name}, seed {seed}: {fault}" for fault in violations(request, outcome)],
    }


def in_child(name: str, size: Size, seed: int) -> dict[str, object]:
    """`measure` in a process of its own."""
    arguments = ["--child", name, "--seeds", str(seed), "--size", *map(str, size)]
    return answer_of_child("planner_fleets", arguments, size[2] + GRACE_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1, help="requests planned at once, one core each")
    parser.add_argument("--child", metavar="NAME", help="plan one request in this process and print JSON")
    parser.add_argument(
        "--size",
        nargs=3,
        type=float,
        metavar=("MODELS", "GPUS", "SECONDS"),
        help="in place of each family's own",
    )
    options = parser.parse_args()

    def size_of(name: str) -> Size:
        models, gpus, seconds = options.size or FAMILIES[name][:3]
        return int(models), int(gpus), float(seconds)

    if options.child:
        print(json.dumps(measure(options.child, size_of(options.child), options.seeds[0])))
        return 0
    columns = ("family", "models × GPUs", "limit s", "seeds", "with a plan", "first level proven")
    print(heading((*columns, "median gap", "worst gap", "after 2 s, median", "worst", "longest wall s")))
    faults: list[object] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        asked = {
            name: [pool.submit(in_child, name, size_of(name), seed) for seed in options.seeds]
            for name in options.families
        }
        for name, futures in asked.items():
            answers = [future.result() for future in futures]
            faults += [fault for answer in answers for fault in answer["faults"]]  # type: ignore[attr-defined]
            models, gpus, seconds = size_of(name)
            gaps = [float(a["gap"]) for a in answers if a["gap"] is not None]  # type: ignore[arg-type]
            early = [a["early"] for a in answers if a["early"] is not None]
            print(
                row(
                    (
                        name,
                        f"{models} × {gpus}",
                        f"{seconds:g}",
                        len(answers),
                        sum(a["status"] in ("optimal", "feasible") for a in answers),
                        sum(a["gap"] == 0.0 for a in answers),
                        gap_text(statistics.median(gaps)) if gaps else "n/a",
                        gap_text(max(gaps)) if gaps else "n/a",
                        f"{statistics.median(early):.3f}" if early else "n/a",  # type: ignore[type-var]
                        f"{_worst(name, early):.3f}" if early else "n/a",
                        f"{max(float(a['wall_s']) for a in answers):.1f}",  # type: ignore[arg-type]
                    )
                ),
                flush=True,
            )
    print(f"\nFaults: {len(faults)}", *faults, sep="\n- " if faults else "")
    return 1 if faults else 0


def _worst(name: str, early: list[object]) -> float:
    values = [float(value) for value in early]  # type: ignore[arg-type]
    return max(values) if FAMILIES[name][3].kind == "min_gpus" else min(values)


if __name__ == "__main__":
    sys.exit(main())
