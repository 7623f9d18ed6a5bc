"""Reckoned steps beside measured ones: errors by family, and what choosing by the estimate would have cost."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A measured step with what was reckoned of it. `group`: rows of equal work have it equal."""

    family: str
    group: tuple[str, ...]
    seconds: float
    reckoned_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class FamilyError:
    """Errors |reckoned − measured| / measured of a family's rows; bias is the mean with its sign.

    `coverage`: share of the measured seconds inside their interval. `regrets`: of every group of equal work with
    two rows or more, (measured seconds of the row reckoned fastest) / (those of the fastest) − 1.
    """

    family: str
    rows: int
    median: float
    mean: float
    p90: float
    bias: float
    coverage: float
    regrets: tuple[float, ...]


def family_errors(steps: Sequence[MeasuredStep]) -> tuple[FamilyError, ...]:
    """One for each family, in the order in which they come."""
    families: dict[str, list[MeasuredStep]] = {}
    for step in steps:
        families.setdefault(step.family, []).append(step)
    return tuple(_of(name, found) for name, found in families.items())


def _of(name: str, steps: Sequence[MeasuredStep]) -> FamilyError:
    signed = [step.reckoned_s / step.seconds - 1 for step in steps]
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


def regrets(steps: Sequence[MeasuredStep]) -> tuple[float, ...]:
    """Of every group of equal work with two rows or more, what the row reckoned fastest loses to the fastest."""
    groups: dict[tuple[str, ...], list[MeasuredStep]] = {}
    for step in steps:
        groups.setdefault(step.group, []).append(step)
    found = []
    for group in groups.values():
        if len(group) > 1:
            chosen = min(group, key=lambda step: step.reckoned_s)
            found.append(chosen.seconds / min(step.seconds for step in group) - 1)
    return tuple(found)


def lines(errors: Sequence[FamilyError]) -> list[str]:
    """A line a family and, of several, one for all: medians over the families."""
    said = [
        f"{one.family}: {one.rows} rows, error median {one.median:.1%}, mean {one.mean:.1%}, p90 {one.p90:.1%}, "
        f"bias {one.bias:+.1%}, {one.coverage:.0%} inside the interval"
        + (f", regret at most {max(one.regrets):.1%} in {len(one.regrets)} groups" if one.regrets else "")
        for one in errors
    ]
    if len(errors) > 1:
        every = [value for one in errors for value in one.regrets]
        said.append(
            f"all {len(errors)} families: median of medians {statistics.median(one.median for one in errors):.1%}, "
            f"median of p90 {statistics.median(one.p90 for one in errors):.1%}, mean coverage "
            f"{statistics.fmean(one.coverage for one in errors):.0%}"
            + (f", regret at most {max(every):.1%} in {len(every)} groups" if every else "")
        )
    return said
