"""An evaluation as CSV: a row a case, a model of a case, a comparison. Empty cells are unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

from torchsplit_core.tables.write_csv import rows_csv
from torchsplit_core.values.evaluation.outcome import (
    CaseFigures,
    CaseKey,
    EvaluationOutcome,
    ModelFigures,
)

_KEY = tuple(field.name for field in dataclasses.fields(CaseKey))
_CASE = tuple(
    field.name for field in dataclasses.fields(CaseFigures) if field.name not in ("at_low", "at_high")
)
_ENDS = ("total_rps", "common_load", "utilisation_full")
_MODEL = tuple(field.name for field in dataclasses.fields(ModelFigures))
CASE_COLUMNS = (
    *_KEY, "status", "gap", "basis", *_CASE, *(f"{name}_low" for name in _ENDS),
    *(f"{name}_high" for name in _ENDS), "layouts", "why_not",
)  # fmt: skip
MODEL_COLUMNS = (*_KEY, *_MODEL)
CLAIM_COLUMNS = ("claim", "part", "counts", "verdict", "case", "tested", "reference", "result", "note")


def cases_csv(outcome: EvaluationOutcome) -> str:
    """Every case with its metrics."""

    def row(case: Any) -> dict[str, Any]:
        cells = dict(dataclasses.asdict(case.key))
        cells |= {"status": case.status, "gap": case.gap, "basis": case.basis, "why_not": case.why_not}
        cells["layouts"] = " | ".join(case.layouts)
        if case.figures is None:
            return cells
        cells |= {name: getattr(case.figures, name) for name in _CASE}
        for end, values in (("low", case.figures.at_low), ("high", case.figures.at_high)):
            cells |= {f"{name}_{end}": getattr(values, name) for name in _ENDS if values is not None}
        return cells

    return rows_csv(CASE_COLUMNS, map(row, outcome.cases))


def models_csv(outcome: EvaluationOutcome) -> str:
    """Every model of every case."""
    return rows_csv(
        MODEL_COLUMNS,
        (
            dataclasses.asdict(case.key) | {name: getattr(model, name) for name in _MODEL}
            for case in outcome.cases
            for model in case.models
        ),
    )


def claims_csv(outcome: EvaluationOutcome) -> str:
    """Every comparison behind the claims."""
    return rows_csv(
        CLAIM_COLUMNS,
        (
            {
                "claim": claim.number,
                "part": part.title,
                "counts": part.counts,
                "verdict": part.verdict,
                "case": comparison.label,
                "tested": comparison.tested,
                "reference": comparison.reference,
                "result": comparison.result,
                "note": comparison.note,
            }
            for claim in outcome.claims
            for part in claim.parts
            for comparison in part.comparisons
        ),
    )
