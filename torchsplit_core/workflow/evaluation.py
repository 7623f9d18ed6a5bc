"""The evaluation of the planner over a grid of cases, as a plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torchsplit_core.values import Progress, ignore_progress

if TYPE_CHECKING:
    from torchsplit_core.values.evaluation.outcome import EvaluationOutcome


def evaluate(
    *,
    quick: bool = False,
    time_limit_s: float | None = None,
    known: EvaluationOutcome | None = None,
    keep: Callable[[EvaluationOutcome], None] = lambda _: None,
    progress: Progress = ignore_progress,
) -> EvaluationOutcome:
    """Every case of the grid and the claims' verdicts, see `evaluation.run.evaluate`. Raises InputFault.

    `time_limit_s`: seconds that each plan may search for; None as the grid has it.
    """
    from torchsplit_core.evaluation.grid import settings_of
    from torchsplit_core.evaluation.run import evaluate as run

    return run(
        quick=quick, settings=settings_of(quick, time_limit_s), known=known, keep=keep, progress=progress
    )
