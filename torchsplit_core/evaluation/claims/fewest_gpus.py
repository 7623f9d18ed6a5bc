"""Claim 1 by the fewest GPUs: the same demands on fewer GPUs idle less, and the minimum can be proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchsplit_core.evaluation.claims.comparison import (
    NEVER_WORSE_RULE,
    ComparedFigure,
    compare_figures,
    make_part,
)
from torchsplit_core.values.evaluation.outcome import CaseFigures, ClaimPart, Comparison, EvaluatedCase

Pair = tuple[EvaluatedCase, EvaluatedCase]
"""A plan with sharing and the exclusive one of the same mix and layouts, both with figures."""


def fewest_parts(pairs: Sequence[Pair]) -> tuple[ClaimPart, ...]:
    """The parts from cases with the fewest GPUs; none without such cases, as in evaluations of an earlier version.

    Only measured mixes count: the GPUs needed at the ends of an estimate's interval are not planned.
    """
    if not pairs:
        return ()
    measured = [(case, other) for case, other in pairs if case.basis == other.basis == "measured"]
    estimated = [pair for pair in pairs if pair not in measured]
    return (
        make_part(
            "Fewest GPUs that carry every demand, shared against exclusive, measured mixes",
            "GPUs; fewer is better",
            _compare(measured, _gpus),
            rule=NEVER_WORSE_RULE,
            words="Open is what no proof decides. The same demands on fewer GPUs leave less of each idle.",
        ),
        make_part(
            "Compute slices at work of those GPUs",
            "share of the compute slices of the GPUs in use, simulated at the demands",
            _compare(measured, _utilisation, less=False),
            counts_for_claim=False,
        ),
        make_part(
            "Fewest GPUs that carry every demand, estimated mixes",
            "GPUs; fewer is better",
            _compare(estimated, _gpus),
            rule=NEVER_WORSE_RULE,
            counts_for_claim=False,
            words="A proof of what the middle of each estimate needs, not of what its interval allows.",
        ),
    )


def _compare(
    pairs: Sequence[Pair],
    reading: Callable[[EvaluatedCase, CaseFigures], ComparedFigure],
    *,
    less: bool = True,
) -> tuple[Comparison, ...]:
    return tuple(
        compare_figures(
            f"{case.key.name} / {other.key.sharing}",
            reading(case, case.figures),
            reading(other, other.figures),
            less=less,
        )
        for case, other in pairs
        if case.figures and other.figures
    )


def _gpus(case: EvaluatedCase, figures: CaseFigures) -> ComparedFigure:
    return ComparedFigure(float(figures.gpus_used), gap=1.0 if case.gap is None else case.gap)


def _utilisation(case: EvaluatedCase, figures: CaseFigures) -> ComparedFigure:
    """Of the GPUs in use: a fleet has a single type, and `layouts` has all of its GPUs."""
    return ComparedFigure(figures.utilisation * len(case.layouts) / figures.gpus_used)
