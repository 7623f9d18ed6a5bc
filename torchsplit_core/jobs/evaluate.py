"""Runs the evaluation as a job of a workspace and stores partial results."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from torchsplit_core.jobs.job_kinds import EvaluateParameters
from torchsplit_core.values import Progress
from torchsplit_core.workflow.evaluation import evaluate
from torchsplit_core.workspace.named_results import evaluation_name, exists

if TYPE_CHECKING:
    from torchsplit_core.values.evaluation.outcome import EvaluationOutcome
    from torchsplit_core.workspace.store import Workspace

SAVE_EVERY_S = 15.0
"""Seconds between saves of partial results: the most work that a cancelled job loses."""


def evaluate_job(workspace: Workspace, parameters: EvaluateParameters, progress: Progress) -> dict[str, Any]:
    """Run the evaluation; cases already stored in the workspace are reused."""
    name = evaluation_name(quick=parameters.quick)
    known = workspace.get("evaluation", name) if exists(workspace, "evaluation", name) else None
    last_saved = time.monotonic()

    def save(partial: EvaluationOutcome) -> None:
        nonlocal last_saved
        if partial.complete or time.monotonic() - last_saved > SAVE_EVERY_S:
            workspace.put("evaluation", name, partial)
            last_saved = time.monotonic()

    outcome = evaluate(
        quick=parameters.quick,
        time_limit_s=parameters.time_limit_s,
        known=known,
        keep=save,
        progress=progress,
    )
    return {
        "evaluation": name,
        "cases": len(outcome.cases),
        "verdicts": [claim.verdict for claim in outcome.claims],
    }
