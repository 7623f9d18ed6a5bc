"""When a figure is better than another, and when a part of a claim is supported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.values.evaluation.outcome import (
    Claim,
    ClaimPart,
    ClaimVerdict,
    Comparison,
    ComparisonResult,
)

EQUAL_TOLERANCE = 0.01
"""Relative difference up to which figures are equal: simulated busy shares repeat to about that."""

MAX_WORSE_SHARE = 0.1
"""Share of a supported claim's comparisons that may contradict it."""

_EQUAL = "Equal is within 1 %, and for simulated times within their 95 % intervals."
RULE = (
    "Supported where it is better in more than half of the comparisons and worse in at most a tenth; cannot be said "
    f"where that hangs on the open ones; else not supported. {_EQUAL}"
)
NO_WORSE_RULE = (
    "Supported where it is worse in at most a tenth of the comparisons; cannot be said where that hangs on the open "
    f"ones; else not supported. {_EQUAL}"
)
NEVER_WORSE_RULE = (
    "Supported where it is better in more than half of the comparisons; cannot be said where that hangs on the open "
    "ones; else not supported. Worse it never is: every exclusive plan is a shared one too."
)
_ORDER: tuple[ClaimVerdict, ...] = ("not supported", "cannot be said", "supported")


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """A figure of a case, with the ends of its estimates if known."""

    value: float
    at_low: float | None = None
    at_high: float | None = None
    gap: float = 0.0
    """(bound − value) / bound, or (value − bound) / value if minimised, for the plan's own objective."""
    noise: float = 0.0
    """Half-width of the simulation's 95 % interval, in the figure's unit."""


def compare_figures(
    label: str, tested: ComparedFigure, reference: ComparedFigure, *, less: bool = False
) -> Comparison:
    """Compare two figures. `less`: the smaller is the better.

    Open if the ends of estimates reverse the result, or if the gap of an unproven plan could.
    """
    sign = -1.0 if less else 1.0
    noise = tested.noise + reference.noise
    at_ends = [
        _result(sign, own_value, other, noise)
        for own_value, other in (
            (tested.value, reference.value),
            (tested.at_low, reference.at_low),
            (tested.at_high, reference.at_high),
        )
        if own_value is not None and other is not None
    ]
    result, note = at_ends[0], ""
    if {"better", "worse"} <= set(at_ends):
        result, note = "open", "the estimates' intervals turn it round"
    elif (
        result != "better"
        and tested.gap > EQUAL_TOLERANCE
        and sign * (_bound(tested, less) - reference.value) > 0
    ):
        result, note = "open", f"its plan is not proven: a gap of {tested.gap:.1%}"
    elif (
        # A plan at its bound is equal: common for whole numbers such as GPUs.
        result == "better"
        and reference.gap > EQUAL_TOLERANCE
        and sign * (_bound(reference, less) - tested.value) > -1e-9 * tested.value
    ):
        result, note = "open", f"the other plan is not proven: a gap of {reference.gap:.1%}"
    return Comparison(label, tested.value, reference.value, result, note)


def _bound(figure: ComparedFigure, less: bool) -> float:
    if less:
        return figure.value * (1 - figure.gap)
    return figure.value / (1 - figure.gap) if figure.gap < 1 else float("inf")


def _result(sign: float, tested: float, reference: float, noise: float) -> ComparisonResult:
    if abs(tested - reference) <= max(EQUAL_TOLERANCE * max(abs(tested), abs(reference)), noise):
        return "equal"
    return "better" if sign * (tested - reference) > 0 else "worse"


def count_results(comparisons: Sequence[Comparison]) -> dict[ComparisonResult, int]:
    """Number of comparisons by result."""
    every: tuple[ComparisonResult, ...] = ("better", "equal", "worse", "open")
    return {result: sum(comparison.result == result for comparison in comparisons) for result in every}


def verdict_of(comparisons: Sequence[Comparison], rule: str = RULE) -> ClaimVerdict:
    """By RULE, NO_WORSE_RULE or NEVER_WORSE_RULE."""
    if not comparisons:
        return "cannot be said"
    tally = count_results(comparisons)

    def holds(better: int, worse: int) -> bool:
        return (rule == NO_WORSE_RULE or better > len(comparisons) / 2) and worse <= MAX_WORSE_SHARE * len(
            comparisons
        )

    may_be_worse = 0 if rule == NEVER_WORSE_RULE else tally["open"]
    if holds(tally["better"], tally["worse"] + may_be_worse):
        return "supported"
    return "cannot be said" if holds(tally["better"] + tally["open"], tally["worse"]) else "not supported"


def make_part(
    title: str,
    metric: str,
    comparisons: Sequence[Comparison],
    *,
    rule: str = RULE,
    counts_for_claim: bool = True,
    words: str = "",
) -> ClaimPart:
    """A part with its verdict, and the counts of its comparisons in words."""
    tally = count_results(comparisons)
    summary = (
        ", ".join(f"{tally[result]} {result}" for result in tally if tally[result]) or "nothing to compare"
    )
    ratio = _median_ratio(comparisons)
    middle = "" if ratio is None else f"; the middle ratio is {ratio:.3g}"
    counted = (
        f"{len(comparisons)} comparisons: {summary}{middle}."
        if comparisons
        else "There is nothing to compare."
    )
    return ClaimPart(
        title,
        metric,
        rule,
        verdict_of(comparisons, rule),
        f"{counted} {words}".strip(),
        tuple(comparisons),
        counts_for_claim,
    )


def _median_ratio(comparisons: Sequence[Comparison]) -> float | None:
    ratios = sorted(
        comparison.tested / comparison.reference for comparison in comparisons if comparison.reference > 0
    )
    return ratios[len(ratios) // 2] if ratios else None


def make_claim(
    number: int, text: str, words: str, parts: Sequence[ClaimPart], *, either_says_it: bool = False
) -> Claim:
    """The claim with the weakest verdict of the parts that count.

    `either_says_it`: each part tests the whole claim, so an undecided one is ignored if another decides.
    """
    verdicts = [claim_part.verdict for claim_part in parts if claim_part.counts]
    if either_says_it:
        verdicts = [verdict for verdict in verdicts if verdict != "cannot be said"] or verdicts
    return Claim(number, text, min(verdicts, key=_ORDER.index), words, tuple(parts))
