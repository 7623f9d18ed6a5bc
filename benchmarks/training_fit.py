"""The constants of the training estimate from measured steps, and how far families are off that the fit did not see.

    python -m benchmarks.training_fit            # fits, and prints beside what stands in the product
    python -m benchmarks.training_fit --write    # writes torchsplit_core/strategy/data/constants.json

Rows: data/training_steps.csv (source and licences in data/NOTICE.md). A family is a framework on a cluster. The fit
is least squares on ln(reckoned / measured) with a soft loss: a family's mean counts once against its spread between
families, its rows around that mean together as at most twelve; every constant begins at its prior and leaves it at the
price of its standard deviation. Rows composed of profiled cells (vtrain-single) count a quarter and are no family
that anything is claimed by.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from torchsplit_core.strategy.cost_model.constants import Constants, constants
from torchsplit_core.strategy.cost_model.estimate import estimate
from torchsplit_core.strategy.cost_model.interval import Spread
from torchsplit_core.strategy.table_input.parsed_row import ParsedRow, read_row

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "data" / "training_steps.csv"
CONSTANTS = ROOT / "torchsplit_core" / "strategy" / "data" / "constants.json"
COMPOSED = "vtrain-single"
BETWEEN, WITHIN, MOST = 0.07, 0.05, 12
"""Spreads that weigh the fit, and the most rows that a family counts as."""
PRIOR_FAMILIES = 12
"""Only few families are measured: as prior, this many more are assumed to have shown the spreads above."""


@dataclass(frozen=True)
class Step:
    """A measured step, parsed."""

    family: str
    cells: dict[str, str]
    row: ParsedRow
    seconds: float


def family_of(cells: dict[str, str]) -> str:
    """The framework on the cluster; all releases of a framework on a cluster are one family."""
    name, gpu = cells["set"], cells["gpu"].split()[0].split("-")[0].split("_")[0].upper()
    if name in ("megatron-sc21-table1", "megatron-jan2021"):
        return "Megatron-LM 2021, Selene"
    if name == COMPOSED:
        return COMPOSED
    return f"{name}, {gpu}"


def read_steps(path: Path = ROWS) -> list[Step]:
    """Read the measured rows."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Step(family_of(cells), cells, read_row(cells), float(cells["iter_s"]))
            for cells in csv.DictReader(file)
        ]


def log_ratio(step: Step, c: Constants) -> float:
    """ln(estimated / measured)."""
    row = step.row
    found = estimate(row.model, row.device, row.cluster, row.choices, row.job, row.software, fitted=c)
    return log(found.seconds / step.seconds)


def residuals(steps: Sequence[Step], c: Constants) -> np.ndarray:
    """Residuals of the fit: each family's mean, and its rows around that mean."""
    families: dict[str, list[float]] = {}
    for step in steps:
        families.setdefault(step.family, []).append(log_ratio(step, c))
    found: list[float] = []
    for name, values in families.items():
        ratios = np.array(values)
        mean, weight = float(ratios.mean()), sqrt(min(len(values), MOST) / len(values))
        if name == COMPOSED:
            weight *= 0.5
        found += list(weight * (ratios - mean) / WITHIN)
        found.append(mean / BETWEEN)
    return np.array(found)


def priors() -> dict[str, tuple[float, float]]:
    """Start value, and spread of the logarithm, of every constant that is fitted."""
    table = json.loads(CONSTANTS.read_text(encoding="utf-8"))["constants"]
    return {name: (entry["prior"], entry["prior_sd"]) for name, entry in table.items() if "prior" in entry}


def fit(steps: Sequence[Step], rounds: int = 12, begin: Constants | None = None) -> Constants:
    """Fit the constants to these rows and the priors, starting at `begin` (default: the priors)."""
    start, table = constants(), priors()
    first = [
        log(getattr(begin, name) / prior) / spread if begin else 0.0
        for name, (prior, spread) in table.items()
    ]

    def at(x: np.ndarray) -> Constants:
        moved = {
            name: prior * exp(v * spread) for v, (name, (prior, spread)) in zip(x, table.items(), strict=True)
        }
        return replace(start, **moved)

    def cost(x: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(steps, at(x)), x])

    return at(least_squares(cost, np.array(first), loss="soft_l1", f_scale=2.0, max_nfev=rounds).x)


def judged_families(steps: Sequence[Step]) -> list[str]:
    """Families about which the benchmark makes a claim."""
    return [name for name in dict.fromkeys(step.family for step in steps) if name != COMPOSED]


def left_out(steps: Sequence[Step], rounds: int = 12) -> dict[str, tuple[Constants, list[float]]]:
    """For each family: constants fitted without it, and its rows' ln(estimated / measured) under them."""
    found = {}
    for name in judged_families(steps):
        c = fit([step for step in steps if step.family != name], rounds)
        found[name] = (c, [log_ratio(step, c) for step in steps if step.family == name])
    return found


def spreads(ratios: Sequence[Sequence[float]], prior: int = PRIOR_FAMILIES) -> Spread:
    """Spread between and within families, from ln(estimated / measured) of families left out of the fit.

    Scaled inverse χ² (Gelman et al., Bayesian Data Analysis, 2.6): the mean square over the families seen and `prior`
    more that have the fit's spreads, with as many degrees of freedom. All families count alike, however many rows they
    have; a family of one row says nothing about the spread within.
    """
    seen, several = len(ratios), [values for values in ratios if len(values) > 1]
    between = prior * BETWEEN**2 + sum(float(np.mean(values)) ** 2 for values in ratios)
    within = prior * WITHIN**2 + sum(float(np.var(values, ddof=1)) for values in several)
    return Spread(
        sqrt(between / (prior + seen)),
        sqrt(within / (prior + len(several))),
        prior + seen,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    steps = read_steps()
    found, now = fit(steps), constants()
    spread = spreads([values for _, values in left_out(steps).values()])
    table = json.loads(CONSTANTS.read_text(encoding="utf-8"))
    for name in priors():
        value = float(f"{getattr(found, name):.3g}")
        print(f"{name}: {getattr(now, name):g} -> {value:g}")
        table["constants"][name]["value"] = value
    print(
        f"between families {spread.between:.3f}, within {spread.within:.3f}, {spread.degrees} degrees of freedom"
    )
    table["intervals"].update(
        between=round(spread.between, 3), within=round(spread.within, 3), degrees=spread.degrees
    )
    if options.write:
        CONSTANTS.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
