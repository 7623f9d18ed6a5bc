"""What leaves a GPU on the evaluation's mixes: planned without pairs, with soft, hard and routed ones.

The bytes/s are computed alike for all, by the formula of the mode `routed`: of every pair the part of the lesser
demand that no GPU has room for on both sides. Bound and gap are what the outcome proves of them among plans of an
equal objective. Each plan is checked without the solver; a routed plan of an equal objective that sends more than
the one without pairs is a fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from benchmarks.planner_report import ended, gap_text, heading, row, same, value_text
from torchsplit_core.evaluation.mixes import MIXES, mix
from torchsplit_core.planning import plan, violations
from torchsplit_core.planning.outcome.figures import cross_gpu_bytes
from torchsplit_core.planning.request.objective import reached_levels
from torchsplit_core.values import Colocation, ColocationMode, PlanRequest, SolverOptions

MODES: tuple[ColocationMode | None, ...] = (None, "soft", "hard", "routed")
SHARINGS = ("exclusive", "fractional")
MB = 1e6


def paired(name: str, mode: ColocationMode | None, most: int | None = None) -> tuple[Colocation, ...]:
    """A mix's pairs, or the first `most` of them, as co-locations of this mode; none without a mode."""
    if mode is None:
        return ()
    return tuple(
        Colocation((pair.first, pair.second), mode, pair.bytes_per_request) for pair in mix(name).pairs[:most]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mixes", nargs="+", choices=list(MIXES), default=list(MIXES))
    parser.add_argument("--sharings", nargs="+", choices=SHARINGS, default=list(SHARINGS))
    parser.add_argument("--pairs", type=int, help="the first so many pairs of a mix alone")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of each search")
    options = parser.parse_args()
    print(
        heading(
            (
                "mix",
                "sharing",
                "pairs",
                "worst served",
                "ended",
                "leaves a GPU, MB/s",
                "bound",
                "gap",
                "wall s",
            )
        )
    )
    wrong: list[str] = []
    for name in options.mixes:
        for sharing in options.sharings:
            request = replace(mix(name).request, sharing=sharing, solver=SolverOptions(options.seconds))
            wrong += _measured(request, name, options.pairs)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


def _measured(request: PlanRequest, name: str, most: int | None) -> list[str]:
    wrong, sent, levels = [], {}, {}
    routed = replace(request, colocations=paired(name, "routed", most))
    for mode in MODES:
        asked = replace(request, colocations=paired(name, mode, most))
        begun = time.perf_counter()
        outcome = plan(asked)
        wall = time.perf_counter() - begun
        title = f"{name}, {request.sharing}, {mode or 'none'}"
        wrong += [f"{title}: {fault}" for fault in violations(asked, outcome)]
        sent[mode], levels[mode] = cross_gpu_bytes(routed, outcome.gpus), reached_levels(outcome.objective)
        told = outcome.objective.routed
        cells = (
            name,
            request.sharing,
            mode or "none",
            value_text(outcome.objective.value),
            ended(outcome.status, outcome.objective.gap),
            value_text(sent[mode] / MB),
            "–" if told is None or told.bound is None else value_text(told.bound / MB),
            gap_text(None if told is None else told.gap),
            f"{wall:.1f}",
        )
        print(row(cells), flush=True)
    if all(map(same, levels[None], levels["routed"])) and sent["routed"] > sent[None] * (1 + 1e-9):
        wrong.append(f"{name}, {request.sharing}: routed sends {sent['routed']}, without pairs {sent[None]}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
