"""Estimated steps against measured ones: errors by family, and the regret of choosing by the estimate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class StepComparison:
    """A measured step with its estimate. Rows of equal work share the same `group`."""

    family: str
    group: tuple[str, ...]
    seconds: float
    estimated_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class FamilyError:
    """Errors |estimated − measured| / measured of a family's rows; `bias` is the signed mean.

    `coverage`: share of the measured seconds inside their interval. `regrets`: for every group of equal work with two
    rows or more, (measured seconds of the row estimated fastest) / (measured seconds of the fastest) − 1.
    """

    family: str
    rows: int
    median: float
    mean: float
    p90: float
    bias: float
    coverage: float
    regrets: tuple[float, ...]


def family_errors(steps: Sequence[StepComparison]) -> tuple[FamilyError, ...]:
    """The errors of each family, in order of first appearance."""
    families: dict[str, list[StepComparison]] = {}
    for step in steps:
        families.setdefault(step.family, []).append(step)
    return tuple(_family_error(name, rows) for name, rows in families.items())


def _family_error(name: str, steps: Sequence[StepComparison]) -> FamilyError:
    signed = [step.estimated_s / step.seconds - 1 for step in steps]
    errors = sorted(abs(value) for value in signed)
    inside = sum(step.low_s <= step.seconds <= step.high_s for step in steps)
    return FamilyError(
        family=name,
        rows=len(steps),
        median=statistics.median(errors),
        mean=statistics.fmean(errors),
        p90=errors[ceil(0.9 * len(errors)) - 1],
        bias=statistics.fmean(signed),
        coverage=inside / len(steps),
        regrets=regrets(steps),
    )


def regrets(steps: Sequence[StepComparison]) -> tuple[float, ...]:
    """For every group of equal work with two rows or more, the regret of the row estimated fastest."""
    groups: dict[tuple[str, ...], list[StepComparison]] = {}
    for step in steps:
        groups.setdefault(step.group, []).append(step)
    losses = []
    for group in groups.values():
        if len(group) > 1:
            chosen = min(group, key=lambda step: step.estimated_s)
            losses.append(chosen.seconds / min(step.seconds for step in group) - 1)
    return tuple(losses)


def format_errors(errors: Sequence[FamilyError]) -> list[str]:
    """A line for each family and, if there are several, one for all: medians over the families."""
    formatted = [
        f"{family.family}: {family.rows} rows, error median {family.median:.1%}, mean "
        f"{family.mean:.1%}, p90 {family.p90:.1%}, "
        f"bias {family.bias:+.1%}, {family.coverage:.0%} inside the interval"
        + (
            f", regret at most {max(family.regrets):.1%} in {len(family.regrets)} groups"
            if family.regrets
            else ""
        )
        for family in errors
    ]
    if len(errors) > 1:
        every = [value for family in errors for value in family.regrets]
        formatted.append(
            f"all {len(errors)} families: median of medians "
            f"{statistics.median(family.median for family in errors):.1%}, "
            f"median of p90 {statistics.median(family.p90 for family in errors):.1%}, mean coverage "
            f"{statistics.fmean(family.coverage for family in errors):.0%}"
            + (f", regret at most {max(every):.1%} in {len(every)} groups" if every else "")
        )
    return formatted
