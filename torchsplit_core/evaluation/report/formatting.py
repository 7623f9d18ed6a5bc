"""Formatting of an evaluation's keys and figures."""

from __future__ import annotations

import math

from torchsplit_core.values.evaluation.outcome import EvaluatedCase, ModelFigures
from torchsplit_core.values.units import MB

UNKNOWN = "n/a"
PLANNERS = {
    "planner": "the planner",
    "whole_gpu": "whole GPUs",
    "uniform": "uniform layouts",
    "first_fit": "first fit",
    "greedy": "greedy best fit",
}
REGIMES = {"any": "any legal layout", "stock": "stock layouts"}
SHARING_WORDS = {"exclusive": "exclusive", "fractional": "shared"}
WEIGHTINGS = {
    "equal": "leximin, equal weights",
    "favoured": "leximin, the first model's weight 2",
    "throughput": "greatest sum of requests/s",
    "fewest_gpus": "fewest GPUs that carry every demand",
}


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent; n/a if unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 6)}f}".replace(",", "\u202f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float | None) -> str:
    """A share as a percentage to a tenth."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def megabytes(bytes_per_s: float | None) -> str:
    """A rate of bytes in MB/s."""
    return UNKNOWN if bytes_per_s is None else figure(bytes_per_s / MB)


def milliseconds(model: ModelFigures, percentile: int) -> str:
    """A response time with the ends of its estimate: `12.3 (10.1 to 45)`."""
    value, low, high = (
        (model.p50_ms, model.p50_low_ms, model.p50_high_ms)
        if percentile == 50
        else (model.p95_ms, model.p95_low_ms, model.p95_high_ms)
    )
    text = figure(value) if value is not None else "not stable" if model.throughput_rps else "not served"
    if low == high and not model.overloaded_at_low:
        # Measured, or estimated without an interval.
        return text
    upper = "no limit" if model.overloaded_at_low else figure(high)
    return f"{text} ({figure(low)} to {upper})"


def proof(case: EvaluatedCase) -> str:
    """The proof or gap of the plan."""
    if case.key.planner != "planner":
        return "a rule"
    if case.gap == 0:
        return "proven"
    return UNKNOWN if case.gap is None else gap_words(case.gap)


def gap_words(gap: float) -> str:
    """The gap of a search; one below its digits never reads as none."""
    return f"gap {percent(gap)}" if gap >= 0.0005 else "gap < 0.1 %"
