"""The requests of a row: its log, or chats drawn with a fixed seed, after those of the stages before it.

Chats come at random (Poisson). What the measured rows say of them, and what is drawn: a prompt is the system prompt
and a question, without the turns before it (a history of half a turn would make the steps of a decoder without
grouped keys 30 to 90 % longer than they were); the system prompt stands in the cache, and with the share
`cached_questions` the whole prompt does, since a user of the load generator asks one question again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.llm import EngineConstants
from torchsplit_core.serving_estimates.row import ServingRow

SEED = 0
STEADY_REQUESTS, STEADY_TOKENS = 400, 400_000
"""Of a stage whose engine keeps up, so many requests are simulated at least, and more up to so many tokens: the rest
changes its mean by about 1 %."""
LEAD_S = 60.0
"""A stage before, whose engine keeps up, is simulated for its last minute only."""

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Requests in order of arrival; those from `first` on are the row's own."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: Counts
    output_tokens: Counts
    cached_tokens: Counts
    first: int


def row_trace(
    row: ServingRow, earlier: Sequence[tuple[ServingRow, bool]], *, steady: bool, constants: EngineConstants
) -> RequestTrace:
    """The requests of a row after those of `earlier` stages of its experiment, each with whether its engine keeps up.

    `steady`: this row's engine keeps up, so that some of its requests stand for all.
    """
    stages = [(before, LEAD_S if keeps_up else None, False) for before, keeps_up in earlier]
    if stages and stages[-1][1] is not None:
        # Nothing is left of older stages.
        stages = stages[-1:]
    parts = [
        _stage(before, seconds, short, constants) for before, seconds, short in (*stages, (row, None, steady))
    ]
    starts = np.cumsum([0.0, *(end for *_, end in parts[:-1])])
    prompts, outputs, cached = (np.concatenate([part[place] for part in parts]) for place in (1, 2, 3))
    arrivals = np.concatenate([start + part[0] for start, part in zip(starts, parts, strict=True)])
    return RequestTrace(arrivals, prompts, outputs, cached, len(arrivals) - len(parts[-1][0]))


def _stage(
    row: ServingRow, seconds: float | None, short: bool, constants: EngineConstants
) -> tuple[NDArray[np.float64], Counts, Counts, Counts, float]:
    """Arrivals from the stage's start, prompt, output and cached tokens, and the stage's end."""
    if row.requests is not None:
        log = row.requests
        count = len(log.arrival_s)
        arrivals = np.array(log.arrival_s)
        prompts, outputs = np.array(log.prompt_tokens), np.array(log.output_tokens)
        return arrivals, prompts, outputs, np.zeros(count, dtype=np.int64), float(arrivals[-1])
    rng = np.random.default_rng([SEED, int(row.stage), int(row.rate_rps * 1000)])
    length = row.duration_s if seconds is None else min(seconds, row.duration_s)
    count = max(1, round(row.rate_rps * length))
    if short:
        count = min(count, max(STEADY_REQUESTS, STEADY_TOKENS // row.output_tokens))
    arrivals = np.cumsum(rng.exponential(1 / row.rate_rps, count))
    prompt = row.system_prompt_tokens + row.question_tokens
    whole = (prompt - 1) // row.block_tokens * row.block_tokens
    system = row.system_prompt_tokens // row.block_tokens * row.block_tokens
    asked_again = rng.random(count) < (constants.cached_questions if row.multi_turn else 0.0)
    cached = np.where(asked_again, whole, min(system, prompt - 1)).astype(np.int64)
    return (
        arrivals,
        np.full(count, prompt, dtype=np.int64),
        np.full(count, row.output_tokens, dtype=np.int64),
        cached,
        float(arrivals[-1]),
    )
