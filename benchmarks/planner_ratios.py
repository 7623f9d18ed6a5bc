"""Exclusive max_min: the literal seed formulation against the planner, in one run.

For each size and seed the two take turns, ours first, `--repetitions` times; medians are compared.
The literal's time is build and solve; where it is stopped at the limit it counts as the limit and is
not asked again. Ours is all of plan(), its independent check included. Both have the same solver,
tolerances and single thread. A tiny request goes through both before the clock runs, so that neither
pays for imports or for the enumeration of layouts, which both use.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field

from benchmarks.literal_planner import ROW_TOLERANCE, Literal, solve_literal
from benchmarks.planner_instances import instance
from benchmarks.planner_report import TOLERANCE, ended, heading, parse_size, row, same
from torchsplit_core.planning import plan, violations
from torchsplit_core.values import PlanOutcome, PlanRequest

GOALS = {(8, 4): 20.0, (64, 64): 60.0}
"""Required speedup of the planner over the literal formulation."""

LIMIT_S = 60.0
"""Seconds after which the goals stop the literal formulation; a shorter limit does not test them."""


@dataclass
class Pair:
    """Both sides of one request: their last results, and the seconds of every repetition."""

    literal: Literal | None = None
    outcome: PlanOutcome | None = None
    literal_s: list[float] = field(default_factory=list)
    build_s: list[float] = field(default_factory=list)
    ours_s: list[float] = field(default_factory=list)


def race(request: PlanRequest, repetitions: int, seconds: float) -> Pair:
    """Run the planner and the literal formulation in turns."""
    pair = Pair()
    for _ in range(repetitions):
        begun = time.perf_counter()
        pair.outcome = plan(request)
        pair.ours_s.append(time.perf_counter() - begun)
        if pair.literal is not None and pair.literal.status != "optimal":
            continue
        pair.literal = solve_literal(request, seconds)
        spent = pair.literal.build_s + pair.literal.solve_s
        pair.literal_s.append(spent if pair.literal.status == "optimal" else seconds)
        pair.build_s.append(pair.literal.build_s)
    return pair


def faults(request: PlanRequest, pair: Pair) -> list[str]:
    """Contradictions between the two, and violations of the plan."""
    literal, outcome = pair.literal, pair.outcome
    assert literal is not None and outcome is not None
    found = [str(fault) for fault in violations(request, outcome)]
    ours, bound = outcome.objective.value, outcome.objective.bound
    if ours is None:
        return [*found, f"no plan: {outcome.status}"]
    if literal.status == outcome.status == "optimal" and literal.value is not None:
        if not same(ours, literal.value) and abs(ours - literal.value) > 2 * ROW_TOLERANCE:
            found.append(f"the literal's optimum is {literal.value}, ours is {ours}")
    elif literal.status == "infeasible":
        found.append("the literal is infeasible, though nothing is demanded")
    for name, value, limit in (("literal", literal.value, bound), ("our", ours, literal.bound)):
        if value is not None and limit is not None and value > limit * (1 + TOLERANCE) + 2 * ROW_TOLERANCE:
            found.append(f"the {name} value {value} is beyond the other's bound {limit}")
    return found


def _against(ratio: float, goal: float | None) -> str:
    """The goal of a size, and whether this ratio misses it."""
    return "–" if goal is None else f"≥ {goal:g}{'' if ratio >= goal else ', missed'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=list(GOALS), metavar="MxG")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=LIMIT_S, help="limit of either side")
    options = parser.parse_args()
    warm = instance(2, 1, kind="max_min")
    plan(warm)
    solve_literal(warm, options.seconds)
    columns = (
        "models × GPUs",
        "seed",
        "literal build s",
        "literal s",
        "literal ended",
        "ours s",
        "ours ended",
        "ratio",
        "goal",
    )
    print(heading(columns))
    wrong: list[str] = []
    for models, gpus in options.sizes:
        ratios: list[float] = []
        goal = GOALS.get((models, gpus)) if options.seconds >= LIMIT_S else None
        for seed in options.seeds:
            request = instance(models, gpus, seed=seed, kind="max_min", seconds=options.seconds)
            pair = race(request, options.repetitions, options.seconds)
            assert pair.literal is not None and pair.outcome is not None
            literal, ours = statistics.median(pair.literal_s), statistics.median(pair.ours_s)
            ratios.append(literal / ours)
            cells = (
                f"{models} × {gpus}",
                seed,
                f"{statistics.median(pair.build_s):.2f}",
                f"{literal:.2f}",
                ended(pair.literal.status, pair.literal.gap),
                f"{ours:.3f}",
                ended(pair.outcome.status, pair.outcome.objective.gap),
                f"{ratios[-1]:.1f}",
                _against(ratios[-1], goal),
            )
            print(row(cells), flush=True)
            wrong += [f"{models} × {gpus}, seed {seed}: {fault}" for fault in faults(request, pair)]
        middle = statistics.median(ratios)
        summary = (f"{models} × {gpus}", "median", *"–––––", f"{middle:.1f}", _against(middle, goal))
        print(row(summary), flush=True)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
