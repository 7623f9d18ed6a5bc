"""Step time and peak memory of trainings as estimated, against published measurements, a family left out at a time.

    python -m benchmarks.training_estimates

Of every family (a framework on a cluster; rows and sources: data/training_steps.csv) the constants are fitted anew
without it, and its rows predicted with them. Intervals are Student's t over the other families' errors, shrunk as in
benchmarks.training_fit; benchmarks.training_coverage leaves out otherwise. Ends with 1 where a row of the table of
memory is called fitting that is known not to.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from pathlib import Path

import numpy as np

from benchmarks.training_fit import Step, judged_families, left_out, read_steps, spreads
from torchsplit_core.strategy.accuracy import FamilyError, StepComparison, family_errors
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.cost_model.interval import calibrated
from torchsplit_core.values.training import StepEstimate
from torchsplit_core.values.units import GIB

WRITTEN = Path(__file__).resolve().parents[1] / "torchsplit_core" / "strategy" / "data" / "left_out.csv"


def reckon(step: Step) -> StepEstimate:
    """Estimate a step with the product's constants."""
    row = step.row
    return estimate(row.model, row.device, row.cluster, row.choices, row.job, row.software)


def left_out_rows(steps: Sequence[Step], rounds: int = 12) -> list[tuple[Step, StepComparison]]:
    """Each judged row, estimated with constants and an interval that did not see its family."""
    found = left_out(steps, rounds)
    measured = []
    for name, (_, ratios) in found.items():
        others = [values for other, (_, values) in found.items() if other != name]
        ends = calibrated((), spreads(others))
        own = [step for step in steps if step.family == name]
        for step, ratio in zip(own, ratios, strict=True):
            seconds = step.seconds * exp(ratio)
            work = ("model", "seq_len", "n_gpus", "global_batch", "precision", "set", "framework")
            group = tuple(step.cells[column] for column in work)
            told = StepComparison(name, group, step.seconds, seconds, seconds * ends.low, seconds * ends.high)
            measured.append((step, told))
    return measured


def left_out_errors(steps: Sequence[Step], rounds: int = 12) -> tuple[FamilyError, ...]:
    """Errors of each family under constants and intervals that did not see it."""
    return family_errors([told for _, told in left_out_rows(steps, rounds)])


def write_left_out(rows: Sequence[tuple[Step, StepComparison]]) -> None:
    """Write the rows that the Train page draws into the package's data."""
    with WRITTEN.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(
            ("family", "model", "gpu", "gpus", "measured_s", "predicted_s", "low_s", "high_s", "source")
        )
        for step, told in rows:
            cells = step.cells
            seconds = (told.seconds, told.estimated_s, told.low_s, told.high_s)
            table.writerow(
                (
                    *(told.family, cells["model"], cells["gpu"], cells["n_gpus"]),
                    *(f"{value:.5g}" for value in seconds),
                    cells["source"],
                )
            )


def table(errors: Sequence[FamilyError]) -> list[str]:
    """One row a family, then the medians over the families."""
    made = [
        "| family left out | rows | median error | mean | p90 | bias | in the 90 % interval | largest regret |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in errors:
        regret = f"{max(one.regrets):.1%} of {len(one.regrets)}" if one.regrets else "n/a"
        made.append(
            f"| {one.family} | {one.rows} | {one.median:.1%} | {one.mean:.1%} | {one.p90:.1%} | {one.bias:+.1%} | "
            f"{one.coverage:.0%} | {regret} |"
        )
    middle = [float(np.median([getattr(one, name) for one in errors])) for name in ("median", "mean", "p90")]
    coverage = float(np.mean([one.coverage for one in errors]))
    made.append(
        f"| median of {len(errors)} families (coverage: mean) | {sum(one.rows for one in errors)} | {middle[0]:.1%} | "
        f"{middle[1]:.1%} | {middle[2]:.1%} | | {coverage:.0%} | |"
    )
    return made


def memory_lines(steps: Sequence[Step]) -> tuple[list[str], int]:
    """Estimated against measured peaks, and how many rows known not to fit are called fitting."""
    found = [
        (step, reckon(step).memory.total / GIB / float(step.cells["peak_mem_gib"]) - 1)
        for step in steps
        if step.cells["peak_mem_gib"]
    ]
    errors = [abs(ratio) for _, ratio in found]
    ran = [step for step in steps if step.family in judged_families(steps)]
    refused = sum(not reckon(step).fits for step in ran)
    said = [
        f"Peak memory: {len(found)} measured rows (torchtitan), error median {np.median(errors):.1%}, p90 "
        f"{np.quantile(errors, 0.9):.1%}. Of {len(ran)} rows that ran, {refused} are said not to fit."
    ]
    wrong = sum(one.fits for one in out_of_memory(steps))
    said.append(
        f"Known out of memory (Llama 2 70B, two sequences a device, 64 A100): {wrong} of 1 called fitting."
    )
    return said, wrong


def out_of_memory(steps: Sequence[Step]) -> list[StepEstimate]:
    """torchtitan's docs/performance.md: 70B with selective recomputation and a local batch of 2 runs out of memory."""
    like = next(
        step for step in steps if step.cells["model"] == "llama2-70b" and step.cells["micro_batch"] == "1"
    )
    row = like.row
    choices, job = (
        replace(row.choices, micro_batch=2),
        replace(row.job, global_batch=2 * row.job.global_batch),
    )
    return [estimate(row.model, row.device, row.cluster, choices, job, row.software)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="of the fit (default 12)")
    parser.add_argument("--write", action="store_true", help="also write the rows that the Train page draws")
    options = parser.parse_args()
    steps = read_steps()
    rows = left_out_rows(steps, options.rounds)
    if options.write:
        write_left_out(rows)
    for line in table(family_errors([told for _, told in rows])):
        print(line)
    print()
    said, wrong = memory_lines(steps)
    print("\n".join(said))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
