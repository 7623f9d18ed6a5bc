"""How far an estimated step may be off: Student's t over families of rows that the fit did not see.

A family (a framework on a cluster) has a common error, and its rows vary around it. For an unseen family the logarithm
of measured over estimated has the spread √(between² + within²); the user's own rows reveal the family's part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import exp, hypot, log, sqrt

from scipy.special import stdtrit

COVERAGE = 0.9
"""Share of the rows that an interval should cover."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviations of logarithms between and within families, and degrees of freedom of the former."""

    between: float
    within: float
    degrees: int


@dataclass(frozen=True, slots=True)
class Offset:
    """What the user's rows imply: the factor on estimated seconds, and the interval's ends around the product."""

    factor: float
    low: float
    high: float


@cache
def fitted_spread() -> Spread:
    """The spread in data/constants.json, which the fit writes with its floors."""
    text = files("torchsplit_core.strategy").joinpath("data/constants.json").read_text(encoding="utf-8")
    intervals = json.loads(text)["intervals"]
    return Spread(float(intervals["between"]), float(intervals["within"]), int(intervals["degrees"]))


def widened(low: float, high: float) -> Spread:
    """The fitted spread, its `between` widened by a 90 % interval of factors from `low` to `high`."""
    s = fitted_spread()
    return replace(s, between=hypot(s.between, log(high / low) / 2 / _quantile(s.degrees)))


@cache
def unseen(spread: Spread | None = None) -> Offset:
    """The interval of a family without known rows."""
    return calibrated((), spread)


def calibrated(log_ratios: tuple[float, ...], spread: Spread | None = None) -> Offset:
    """The offset that known rows imply, from their ln(measured / estimated).

    The family's part is normal around 0 with `between`, each row around it with `within`: the mean of the known rows is
    shrunk towards 0 accordingly, and the remaining uncertainty goes into the interval.
    """
    s = spread or fitted_spread()
    n = len(log_ratios)
    precision = 1.0 / s.between**2 + n / s.within**2
    middle = sum(log_ratios) / s.within**2 / precision
    width = _quantile(s.degrees + n) * sqrt(1.0 / precision + s.within**2)
    return Offset(exp(middle), exp(-width), exp(width))


def _quantile(degrees: int) -> float:
    """Half the width of an interval with the intended coverage, in standard deviations."""
    return float(stdtrit(degrees, 0.5 + COVERAGE / 2))
