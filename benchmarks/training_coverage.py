"""How many rows of trainings lie in their 90 % interval, families left out of the fit in several ways.

    python -m benchmarks.training_coverage

One by one, by GPU type, by generation, by source, and random halves: of every group the constants are
fitted without it, and the spreads come from what is left, one of its families left out at a time (the fits begin at
the product's constants). Then one to three random rows of a family left out are known, and calibrate the others.
Coverage is the share of a family's rows, averaged over families. Ends with 1 where one is outside of 85 to 97 %.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import log
from statistics import fmean, median

from benchmarks.training_fit import (
    PRIOR_FAMILIES,
    ROWS,
    Step,
    fit,
    judged_families,
    log_ratio,
    read_steps,
    spreads,
)
from torchsplit_core.strategy.cost_model.constants import constants
from torchsplit_core.strategy.cost_model.interval import Spread, calibrated

ROUNDS = 3
"""Rounds of a fit that begins at the product's constants, which it changes little."""
HALVES, DRAWS, MOST_KNOWN, SEED = 4, 50, 3, 0
LEAST, MOST = 0.85, 0.97
"""Required coverage, averaged over families."""
ONE_WAY = "Hopper, or all before it"
Ratios = dict[str, list[float]]
"""ln(estimated / measured) of each family's rows."""
Group = frozenset[str]


@cache
def steps() -> list[Step]:
    """Read the measured rows."""
    return read_steps(ROWS)


@cache
def reckoned(without: Group) -> Ratios:
    """Every judged family under constants fitted without these families."""
    c = fit([step for step in steps() if step.family not in without], ROUNDS, constants())
    found: Ratios = {name: [] for name in judged_families(steps())}
    for step in steps():
        if step.family in found:
            found[step.family].append(log_ratio(step, c))
    return found


def spread_without(group: Group, prior: int) -> Spread:
    """Spread from the other families, each under constants fitted without it and without the group."""
    others = [name for name in judged_families(steps()) if name not in group]
    return spreads([reckoned(group | {name})[name] for name in others], prior)


def inside(ratios: Sequence[float], known: Sequence[float], spread: Spread) -> float:
    """Share of rows inside their interval, with the offset that the known rows give."""
    offset = calibrated(tuple(-value for value in known), spread)
    low, high = log(offset.factor * offset.low), log(offset.factor * offset.high)
    return fmean(low <= -value <= high for value in ratios)


def gpu(name: str) -> str:
    """A family's GPU: Selene has the A100, a DGX of dgxc-bench the H100."""
    last = name.split(", ")[1]
    return {"Selene": "A100", "DGX": "H100"}.get(last, last)


def generation(name: str) -> str:
    """Hopper, or before Hopper."""
    return "Hopper" if gpu(name).startswith("H") else "before Hopper"


def source(name: str) -> str:
    """Who measured a family: all releases of a project, on all clusters."""
    return name.split("-")[0].split(",")[0].lower()


def ways() -> dict[str, list[Group]]:
    """Ways to leave out families: groups that are left out together, by name."""
    names = judged_families(steps())

    def by(key: Callable[[str], str]) -> list[Group]:
        return [
            frozenset(one for one in names if key(one) == value) for value in dict.fromkeys(map(key, names))
        ]

    dice, halves = random.Random(SEED), []
    for _ in range(HALVES):
        half = frozenset(dice.sample(names, len(names) // 2))
        halves += [half, frozenset(names) - half]
    return {
        "one family": [frozenset({name}) for name in names],
        "a GPU type": by(gpu),
        ONE_WAY: by(generation),
        "a source": by(source),
        f"halves of the families, {HALVES} times": halves,
    }


def left_out_line(name: str, groups: Sequence[Group], prior: int) -> tuple[str, float]:
    """The row and the coverage of a way to leave out families."""
    shares, ends = [], []
    for group in groups:
        spread = spread_without(group, prior)
        ends.append(calibrated((), spread).high - 1)
        shares += [inside(reckoned(group)[family], (), spread) for family in group]
    covered = fmean(shares)
    return (
        f"| {name} | {len(groups)} | {covered:.1%} | {min(shares):.0%} | +{median(ends):.1%} | "
        f"+{min(ends):.1%} to +{max(ends):.1%} |"
    ), covered


def known_line(known: int, prior: int) -> tuple[str, float]:
    """Row and coverage where `known` rows of a left-out family calibrate its others."""
    dice, shares, ends = random.Random(SEED), [], []
    for name in judged_families(steps()):
        rows = reckoned(frozenset({name}))[name]
        if len(rows) < MOST_KNOWN + 1:
            continue
        spread, of_family = spread_without(frozenset({name}), prior), []
        for _ in range(DRAWS):
            mixed = dice.sample(rows, len(rows))
            of_family.append(inside(mixed[known:], mixed[:known], spread))
        shares.append(fmean(of_family))
        ends.append(calibrated((0.0,) * known, spread).high - 1)
    covered = fmean(shares)
    return f"| {known} | {len(shares)} | {covered:.1%} | {min(shares):.0%} | +{median(ends):.1%} |", covered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one way of leaving out, no known rows")
    parser.add_argument(
        "--prior", type=int, default=PRIOR_FAMILIES, help="families that the fit's own spreads count as"
    )
    options = parser.parse_args()
    several = ways() if not options.quick else {ONE_WAY: ways()[ONE_WAY]}
    print(
        "| left out together | groups | coverage, mean of families | least of a family | upper end, median | range |"
    )
    print("|---|---|---|---|---|---|")
    found = []
    for name, groups in several.items():
        line, covered = left_out_line(name, groups, options.prior)
        print(line, flush=True)
        found.append(covered)
    if options.quick:
        return
    print("\n| rows known | families | coverage of the others | least of a family | upper end, median |")
    print("|---|---|---|---|---|")
    for known in range(1, MOST_KNOWN + 1):
        line, covered = known_line(known, options.prior)
        print(line, flush=True)
        found.append(covered)
    sys.exit(not all(LEAST <= covered <= MOST for covered in found))


if __name__ == "__main__":
    main()
