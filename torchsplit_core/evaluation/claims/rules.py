"""When a figure is better than another, and when a part of a claim holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchsplit_core.values.evaluation.outcome import Claim, ClaimPart, Comparison, Result, Verdict

SAME = 0.01
"""Figures within this share of the larger one are equal: simulated shares of busy time repeat to about that."""

MOST_WORSE = 0.1
"""Share of its comparisons in which a claim may be wrong and still be supported."""

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
_ORDER: tuple[Verdict, ...] = ("not supported", "cannot be said", "supported")


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a case, at the ends of its estimates too where it is known there."""

    value: float
    at_low: float | None = None
    at_high: float | None = None
    gap: float = 0.0
    """(bound − value) / bound, of a figure that is minimised (value − bound) / value, where it is what the plan was
    made for."""
    noise: float = 0.0
    """Half-width of the simulation's 95 % interval, in the figure's unit."""


def compared(label: str, tested: Figure, reference: Figure, *, less: bool = False) -> Comparison:
    """The one beside the other. `less`: the smaller figure is the better one.

    Open where the estimates' ends turn it round, and where a plan that is not proven could.
    """
    sign = -1.0 if less else 1.0
    noise = tested.noise + reference.noise
    at_ends = [
        _result(sign, mine, other, noise)
        for mine, other in (
            (tested.value, reference.value),
            (tested.at_low, reference.at_low),
            (tested.at_high, reference.at_high),
        )
        if mine is not None and other is not None
    ]
    result, note = at_ends[0], ""
    if {"better", "worse"} <= set(at_ends):
        result, note = "open", "the estimates' intervals turn it round"
    elif result != "better" and tested.gap > SAME and sign * (_bound(tested, less) - reference.value) > 0:
        result, note = "open", f"its plan is not proven: a gap of {tested.gap:.1%}"
    elif (
        # At its bound it is equal: of whole numbers, such as GPUs, that is likely.
        result == "better"
        and reference.gap > SAME
        and sign * (_bound(reference, less) - tested.value) > -1e-9 * tested.value
    ):
        result, note = "open", f"the other plan is not proven: a gap of {reference.gap:.1%}"
    return Comparison(label, tested.value, reference.value, result, note)


def _bound(figure: Figure, less: bool) -> float:
    if less:
        return figure.value * (1 - figure.gap)
    return figure.value / (1 - figure.gap) if figure.gap < 1 else float("inf")


def _result(sign: float, mine: float, other: float, noise: float) -> Result:
    if abs(mine - other) <= max(SAME * max(abs(mine), abs(other)), noise):
        return "equal"
    return "better" if sign * (mine - other) > 0 else "worse"


def counts(found: Sequence[Comparison]) -> dict[Result, int]:
    """How many comparisons ended in each way."""
    every: tuple[Result, ...] = ("better", "equal", "worse", "open")
    return {result: sum(one.result == result for one in found) for result in every}


def verdict_of(found: Sequence[Comparison], rule: str = RULE) -> Verdict:
    """By RULE, NO_WORSE_RULE or NEVER_WORSE_RULE."""
    if not found:
        return "cannot be said"
    told = counts(found)

    def holds(better: int, worse: int) -> bool:
        return (rule == NO_WORSE_RULE or better > len(found) / 2) and worse <= MOST_WORSE * len(found)

    may_be_worse = 0 if rule == NEVER_WORSE_RULE else told["open"]
    if holds(told["better"], told["worse"] + may_be_worse):
        return "supported"
    return "cannot be said" if holds(told["better"] + told["open"], told["worse"]) else "not supported"


def part(
    title: str,
    metric: str,
    found: Sequence[Comparison],
    *,
    rule: str = RULE,
    counts_for_claim: bool = True,
    words: str = "",
) -> ClaimPart:
    """A part with its verdict, and its comparisons counted in words."""
    told = counts(found)
    summary = ", ".join(f"{told[result]} {result}" for result in told if told[result]) or "nothing to compare"
    ratio = _middle_ratio(found)
    middle = "" if ratio is None else f"; the middle ratio is {ratio:.3g}"
    counted = f"{len(found)} comparisons: {summary}{middle}." if found else "There is nothing to compare."
    return ClaimPart(
        title,
        metric,
        rule,
        verdict_of(found, rule),
        f"{counted} {words}".strip(),
        tuple(found),
        counts_for_claim,
    )


def _middle_ratio(found: Sequence[Comparison]) -> float | None:
    ratios = sorted(one.tested / one.reference for one in found if one.reference > 0)
    return ratios[len(ratios) // 2] if ratios else None


def claim(
    number: int, text: str, words: str, parts: Sequence[ClaimPart], *, either_says_it: bool = False
) -> Claim:
    """The claim with the weakest verdict of the parts that count.

    `either_says_it`: each of them says the whole claim, so that one which cannot be said is left to the others.
    """
    verdicts = [one.verdict for one in parts if one.counts]
    if either_says_it:
        verdicts = [verdict for verdict in verdicts if verdict != "cannot be said"] or verdicts
    return Claim(number, text, min(verdicts, key=_ORDER.index), words, tuple(parts))
