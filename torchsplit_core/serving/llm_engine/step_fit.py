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


HUBER = 1.345
"""Standard deviations from which a step weighs less: 95 % efficient for normal errors (Huber, Robust Statistics)."""
NORMAL_MAD = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""
REWEIGHTINGS = 20
LEAST_MS = 0.01
"""No step takes less."""


@dataclass(frozen=True, slots=True)
class StepFit:
    """A line fitted to `steps` steps. `total_error`: of the sum of their times; `median_error`: of one step."""

    line: StepLine
    steps: int
    total_error: float
    median_error: float


def fit_step_line(steps: Sequence[LoggedStep], *, robust: bool = False) -> StepFit:
    """The line that explains the seconds of the steps best: least squares, no coefficient below 0.

    Seconds count as they are, since waiting adds up seconds, not shares. `robust`: relative errors count, and steps in
    which something else had the core, which take many times as long as their like, weigh less (Huber's weights): what
    is fitted is the engine, not what happened beside it. Raises InputFault for too few steps.
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
    weights = 1.0 / np.maximum(times_ms, LEAST_MS) if robust else np.ones_like(times_ms)
    for _ in range(REWEIGHTINGS if robust else 1):
        coefficients = nnls(work / sizes * weights[:, None], times_ms * weights)[0] / sizes
        fitted = work @ coefficients
        expected = np.maximum(fitted, LEAST_MS)
        apart = np.maximum(np.abs(times_ms - fitted) / expected, 1e-12)
        # The root: least squares square it.
        weights = np.sqrt(np.minimum(1.0, HUBER * NORMAL_MAD * np.median(apart) / apart)) / expected
    return StepFit(
        StepLine(*map(float, coefficients)),
        len(steps),
        float(fitted.sum() / times_ms.sum() - 1),
        float(np.median(np.abs(fitted / times_ms - 1))),
    )
