"""The published serving mixes on measured A100-80GB slices: the fewest GPUs that serve every rate, proven.

Each model's rate is a hard minimum within its latency limit. Seconds are those of plan(), its
independent check included. A number of GPUs that is not proven, or not the known one, is a fault.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from itertools import product
from typing import Literal

from benchmarks.planner_report import ended, heading, row, value_text
from torchsplit_core.planning import plan, violations
from torchsplit_core.profiling.library import mix_request, serving_mixes
from torchsplit_core.values import SolverOptions

FEWEST = {("S1", "exclusive"): 2, ("S3", "exclusive"): 5, ("S1", "fractional"): 1, ("S3", "fractional"): 4}
"""Known fewest GPUs of the mixes, with whole slices and with shares."""

MIXES = ("S1", "S3")
SHARINGS: tuple[Literal["exclusive", "fractional"], ...] = ("exclusive", "fractional")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--gpus", type=int, default=8, help="GPUs offered")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of the search")
    options = parser.parse_args()
    published = {mix.name: mix.published_gpus for mix in serving_mixes()}
    columns = (
        "mix",
        "models",
        "sharing",
        "GPUs offered",
        "fewest",
        "bound",
        "ended",
        "wall s",
        "published planner",
    )
    print(heading(columns))
    wrong: list[str] = []
    for name, sharing in product(options.mixes, SHARINGS):
        asked = mix_request(name, options.gpus, "min_gpus")
        request = replace(asked, sharing=sharing, solver=SolverOptions(options.seconds))
        begun = time.perf_counter()
        outcome = plan(request)
        wall = time.perf_counter() - begun
        objective = outcome.objective
        wrong += [f"{name}, {sharing}: {fault}" for fault in violations(request, outcome)]
        if outcome.status != "optimal" or objective.value != FEWEST[name, sharing]:
            wrong.append(
                f"{name}, {sharing}: {outcome.status} with {objective.value} GPUs, {FEWEST[name, sharing]} expected"
            )
        cells = (
            name,
            len(request.models),
            sharing,
            options.gpus,
            value_text(objective.value),
            value_text(objective.bound),
            ended(outcome.status, objective.gap),
            f"{wall:.2f}",
            published[name],
        )
        print(row(cells), flush=True)
    print(f"\nFaults: {len(wrong)}", *wrong, sep="\n- " if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
