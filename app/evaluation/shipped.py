"""The evaluation that comes with TorchSplit: the outcome behind docs/reference/evaluation.md."""

from __future__ import annotations

import functools
from pathlib import Path

from app.format.glossary import DOCS
from torchsplit_core.files import read_file
from torchsplit_core.values.evaluation.outcome import EvaluationOutcome

SHIPPED = DOCS / "reference" / "evaluation.json"


def load_shipped() -> EvaluationOutcome | None:
    """The outcome, read once; None where the documents did not come along."""
    return _read(SHIPPED) if SHIPPED.is_file() else None


@functools.lru_cache(maxsize=1)
def _read(path: Path) -> EvaluationOutcome:
    outcome: EvaluationOutcome = read_file(path, expected="torchsplit.evaluation")[1]
    return outcome
