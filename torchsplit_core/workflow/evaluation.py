"""Evaluates the planner over a grid of cases."""

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
    """Run every case of the grid and judge the claims, see `evaluation.run.evaluate`. Raises InputFault.

    `time_limit_s`: limit of each plan's search; None: the grid's own.
    """
    from torchsplit_core.evaluation.grid import settings_of
    from torchsplit_core.evaluation.run import evaluate as run

    return run(
        quick=quick, settings=settings_of(quick, time_limit_s), known=known, keep=keep, progress=progress
    )
