"""The line of an engine's step times, fitted to its own steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from torchsplit_core.serving.llm_engine.step_log import LoggedStep
from torchsplit_core.values import InputFault, StepLine

LEAST_STEPS = 20
"""Fewer steps say next to nothing of five coefficients."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """A line fitted to `steps` steps. `total_error`: of the sum of their times; `median_error`: of one step."""

    line: StepLine
    steps: int
    total_error: float
    median_error: float


def fit_step_line(steps: Sequence[LoggedStep]) -> StepFit:
    """The line that explains the seconds of the steps best: least squares, no coefficient below 0.

    Seconds count as they are, since waiting adds up seconds, not shares. Raises InputFault for too few steps.
    """
    if len(steps) < LEAST_STEPS:
        problem = f"has {len(steps)} steps, fewer than the {LEAST_STEPS} that a line is fitted to"
        raise InputFault("the engine's log", problem, "Load the engine for longer.")
    work = np.array(
        [
            (1.0, step.prompt_tokens, step.sequences, step.context_tokens, step.attention_pairs)
            for step in steps
        ]
    )
    times_ms = 1e3 * np.array([step.end_s - step.start_s for step in steps])
    # Columns of one size: pairs of tokens are counted in ten thousands, sequences in single ones.
    sizes = np.maximum(np.linalg.norm(work, axis=0), 1e-12)
    coefficients = nnls(work / sizes, times_ms)[0] / sizes
    fitted = work @ coefficients
    return StepFit(
        StepLine(*map(float, coefficients)),
        len(steps),
        float(fitted.sum() / times_ms.sum() - 1),
        float(np.median(np.abs(fitted / times_ms - 1))),
    )
