"""Leximin from small to large: time, how far it is proven, gap, and peak memory.

Every request is planned in a child process of its own, so that the peak memory is its alone: the
largest resident set (ru_maxrss) of a process that has imported the planner, built the request,
planned it and checked the plan. Wall seconds are those of plan(), its independent check included;
the search gets `--margin` of the seconds in which the plan has to stand. Value is the smallest
normalised throughput; bound and gap are the outcome's and speak of the first level that is not proven.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.planner_report import gap_text, heading, row, value_text

ROOT = Path(__file__).resolve().parent.parent

CASES = (
    "8x4:exclusive:60",
    "8x8:exclusive:60",
    "16x16:exclusive:60",
    "64x256:exclusive:30",
    "64x1024:exclusive:60",
    "64x256:fractional:15",
)
"""MODELSxGPUS:SHARING:SECONDS."""

GRACE_S = 300.0
"""A child that exceeds its limit by this much is stopped, which counts as a fault."""


def measure(case: str, margin: float, seed: int) -> dict[str, object]:
    """Plan one case in this process."""
    from benchmarks.planner_instances import instance
    from torchsplit_core.planning import plan, violations

    models, gpus, sharing, seconds = parse_case(case)
    request = instance(
        models,
        gpus,
        seed=seed,
        sharing="fractional" if sharing == "fractional" else "exclusive",
        seconds=seconds * margin,
    )
    begun = time.perf_counter()
    outcome = plan(request)
    wall = time.perf_counter() - begun
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {
        "wall_s": wall,
        "status": outcome.status,
        "value": outcome.objective.value,
        "bound": outcome.objective.bound,
        "gap": outcome.objective.gap,
        "proven": outcome.objective.proven_levels,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
        "faults": list(violations(request, outcome)),
    }


def parse_case(text: str) -> tuple[int, int, str, float]:
    """Parse `64x256:exclusive:30` into models, GPUs, sharing and seconds; also for argparse."""
    try:
        size, sharing, seconds = text.split(":")
        models, gpus = (int(part) for part in size.split("x"))
        limit = float(seconds)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODELSxGPUS:SHARING:SECONDS") from None
    if models < 1 or gpus < 1 or sharing not in ("exclusive", "fractional") or not limit > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not MODELSxGPUS:SHARING:SECONDS")
    return models, gpus, sharing, limit


def _in_child(case: str, margin: float, seed: int) -> dict[str, object]:
    """`measure` in a child process; a missing result is a fault."""
    limit = parse_case(case)[3]
    command = [sys.executable, "-m", "benchmarks.planner_scale"]
    command += ["--child", case, "--margin", str(margin), "--seed", str(seed)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=limit + GRACE_S
        )
    except subprocess.TimeoutExpired:
        return {"faults": [f"no answer {GRACE_S:g} s after its limit"]}
    if done.returncode:
        return {"faults": [f"the child ended with {done.returncode}"]}
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="MxG:SHARING:SECONDS")
    parser.add_argument("--margin", type=float, default=0.95, help="share of the seconds given to the search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", metavar="CASE", help="plan one case in this process and print JSON")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.margin, options.seed)))
        return 0
    columns = (
        "models × GPUs",
        "sharing",
        "to be done in s",
        "wall s",
        "status",
        "value",
        "bound",
        "gap",
        "first-level gap",
        "proven levels",
        "peak MiB",
    )
    for case in options.cases:
        try:
            parse_case(case)
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    print(heading(columns))
    wrong: list[str] = []
    for case in options.cases:
        models, gpus, sharing, seconds = parse_case(case)
        found = _in_child(case, options.margin, options.seed)
        wrong += [f"{case}: {fault}" for fault in found["faults"]]  # type: ignore[attr-defined]
        head = [f"{models} × {gpus}", sharing, f"{seconds:g}"]
        if "status" not in found:
            print(row([*head, *["–"] * 8]), flush=True)
            continue
        cells = (
            f"{found['wall_s']:.2f}",
            found["status"],
            value_text(found["value"]),  # type: ignore[arg-type]
            value_text(found["bound"]),  # type: ignore[arg-type]
            gap_text(found["gap"]),  # type: ignore[arg-type]
            gap_text(0.0 if found["proven"] else found["gap"]),  # type: ignore[arg-type]
            f"{found['proven']} of {models}",
            f"{found['peak_mib']:.0f}",
        )
        print(row([*head, *cells]), flush=True)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
