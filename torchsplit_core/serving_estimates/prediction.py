"""The figures of one row: an engine with the memory and the steps that its sizes give, simulated on its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchsplit_core.llm import EngineConstants, engine_memory, step_lines
from torchsplit_core.llm.step_times import Z90, scaled
from torchsplit_core.serving_estimates.row import FIGURES, ServingRow
from torchsplit_core.serving_estimates.trace import RequestTrace, row_trace
from torchsplit_core.simulation.continuous import EngineRun, run_engines
from torchsplit_core.values import EngineServer, InputFault, StepLine

_ROUNDS = 60
"""Of the search for the usual step, each halfway to where the one before led."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What known rows say: factors of step times, of the time to the first token, pieces of text for each token
    (None: as the decoder's vocabulary has it), and how many rows said it.
    """

    step: float = 1.0
    first_token: float = 1.0
    pieces: float | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class UsualStep:
    """Means of a step under a row's load, on one engine. `keeps_up`: neither sequences nor blocks run out."""

    sequences: float
    chunk_tokens: float
    keeps_up: bool


@dataclass(frozen=True, slots=True)
class RowFigures:
    """Predictions in ms by their column (None: of no request), and the ends of 90 % intervals of three means."""

    values: dict[str, float | None]
    intervals: dict[str, float | None]
    kv_blocks: int
    keeps_up: bool


def predict_row(
    row: ServingRow,
    earlier: Sequence[ServingRow] = (),
    correction: Correction | None = None,
    *,
    intervals: bool = True,
    constants: EngineConstants | None = None,
) -> RowFigures:
    """The row's figures after the `earlier` stages of its experiment. `intervals`: also simulate their ends.

    Raises InputFault where the engine does not fit into memory, or its cache holds no request.
    """
    known = constants or EngineConstants()
    change = correction or Correction()
    blocks = usable_blocks(row, known)
    step = usual_step(row, blocks, change.step, known)
    before = [(stage, usual_step(stage, blocks, change.step, known).keeps_up) for stage in earlier]
    trace = row_trace(row, before, steady=step.keeps_up, constants=known)
    _check_fit(row, trace, blocks)
    lines = step_lines(
        row.sizes,
        row.device,
        sequences=step.sequences,
        chunk_tokens=step.chunk_tokens,
        expert_gpus=row.expert_gpus,
        constants=known,
    )
    spread = known.calibrated_spread if change.rows else known.spread
    ends = (0.0, -Z90 * spread, Z90 * spread) if intervals else (0.0,)
    figures = [
        _figures(
            row,
            trace,
            _simulate(row, trace, blocks, scaled(lines, change.step * math.exp(end))),
            change,
            known,
        )
        for end in ends
    ]
    wide = math.exp(Z90 * known.first_token_spread)
    bounds: dict[str, float | None] = {}
    for name in ("ttft_mean", "itl_mean", "e2e_mean") if intervals else ():
        width = wide if name == "ttft_mean" else 1.0
        low, high = (figures[place][f"{name}_ms"] for place in (1, 2))
        bounds[f"{name}_low_ms"] = None if low is None else low / width
        bounds[f"{name}_high_ms"] = None if high is None else high * width
    return RowFigures(figures[0], bounds, blocks, step.keeps_up)


def usable_blocks(row: ServingRow, constants: EngineConstants) -> int:
    """Blocks of the KV cache: the row's, or what memory leaves. Raises InputFault where it leaves none."""
    if row.kv_blocks is not None:
        return row.kv_blocks
    memory = engine_memory(
        row.sizes,
        row.device,
        max_num_seqs=row.max_num_seqs,
        max_num_batched_tokens=row.max_num_batched_tokens,
        gpu_memory_utilization=row.gpu_memory_utilization,
        block_tokens=row.block_tokens,
        expert_gpus=row.expert_gpus,
        constants=constants,
    )
    if not memory.fits:
        needed = memory.weights_gib + memory.activations_gib + memory.engine_gib
        raise InputFault(
            "gpu",
            f"weights, activations and the engine need {needed:.1f} GiB of each GPU, and {memory.total_gib:.1f} GiB "
            "may be used",
            "Give more GPUs (tp), a larger one, or weights of fewer bits.",
        )
    return memory.kv_blocks


def usual_step(row: ServingRow, blocks: int, factor: float, constants: EngineConstants) -> UsualStep:
    """The step in which sequences come as fast as they leave: sequences are rate · tokens · step (Little's law)."""
    rate, prompt, output, fresh = _load(row, constants)
    rate /= row.engines
    context = prompt + output / 2
    most = min(row.max_num_seqs, max(blocks * row.block_tokens / context, 1.0))
    sequences = 1.0
    for _ in range(_ROUNDS):
        lines = scaled(
            step_lines(
                row.sizes,
                row.device,
                sequences=sequences,
                chunk_tokens=fresh,
                expert_gpus=row.expert_gpus,
                constants=constants,
            ),
            factor,
        )
        seconds = _step_seconds(lines, rate, fresh, sequences, context, row.max_num_batched_tokens)
        sequences = min(most, (sequences + rate * output * seconds) / 2)
    return UsualStep(sequences, min(fresh, row.max_num_batched_tokens), sequences < 0.9 * most)


def _step_seconds(
    lines: Sequence[StepLine], rate: float, fresh: float, sequences: float, context: float, budget: int
) -> float:
    """A mean step: one of `rate · step` has a prompt, the others decode alone."""
    decode = max(
        line.base_ms + line.sequence_ms * sequences + line.context_token_ms * context * sequences
        for line in lines
    )
    chunk = min(fresh, budget)
    prompt = max(
        line.base_ms
        + line.prompt_token_ms * chunk
        + line.sequence_ms * sequences
        + line.context_token_ms * context * sequences
        for line in lines
    )
    share = min(rate * fresh / chunk * (prompt - decode) / 1e3, 0.9)
    return decode / 1e3 / (1 - share)


def _load(row: ServingRow, constants: EngineConstants) -> tuple[float, float, float, float]:
    """Requests/s, mean prompt and output tokens, and mean prompt tokens that the cache has not."""
    if row.requests is not None:
        log = row.requests
        span = max(log.arrival_s[-1], 1.0)
        prompt = float(np.mean(log.prompt_tokens))
        return len(log.arrival_s) / span, prompt, float(np.mean(log.output_tokens)), prompt
    prompt = row.system_prompt_tokens + row.question_tokens
    again = constants.cached_questions if row.multi_turn else 0.0
    return row.rate_rps, prompt, row.output_tokens, max(row.question_tokens * (1 - again), 1.0)


def _check_fit(row: ServingRow, trace: RequestTrace, blocks: int) -> None:
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    if -(-(longest - 1) // row.block_tokens) > blocks:
        raise InputFault(
            "kv_blocks",
            f"{blocks} blocks of {row.block_tokens} tokens hold no request of {longest} tokens",
            "Give more memory, or shorter requests.",
        )


def _simulate(row: ServingRow, trace: RequestTrace, blocks: int, lines: tuple[StepLine, ...]) -> EngineRun:
    engine = EngineServer(
        "engine",
        "model",
        "whole",
        row.max_num_seqs,
        row.max_num_batched_tokens,
        blocks,
        lines,
        count=row.engines,
        block_tokens=row.block_tokens,
        reserve_full_prompt=row.reserve_full_prompt,
        max_model_len=row.max_model_len,
    )
    return run_engines(engine, trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.cached_tokens)


def _figures(
    row: ServingRow, trace: RequestTrace, run: EngineRun, change: Correction, constants: EngineConstants
) -> dict[str, float | None]:
    """What a client sees of the row's own requests: it waits for one more step, and for the front end."""
    part = slice(trace.first, None)
    arrivals, outputs = trace.arrival_s[part], trace.output_tokens[part]
    first, last = (run.first_token_s[part] - arrivals) * 1e3, (run.last_token_s[part] - arrivals) * 1e3
    gaps = int((outputs - 1).sum())
    gap = float((last - first).sum()) / gaps if gaps else None
    ttft = first + constants.steps_ahead * (gap or 0.0) + constants.front_ms
    response = (last - first) + ttft * change.first_token
    pieces = change.pieces or text_pieces(row, constants)
    return dict(
        zip(
            FIGURES,
            (
                *_summary(ttft * change.first_token),
                None if gap is None else gap / pieces,
                *_summary(response),
            ),
            strict=True,
        )
    )


def text_pieces(row: ServingRow, constants: EngineConstants) -> float:
    """Pieces of text for each token, as a load generator counts them; a log has the tokens themselves.

    SentencePiece vocabularies have at most some ten thousand entries and spell rare characters in bytes; a model that
    was taught to answer hardly uses these.
    """
    taught = any(word in row.model.lower() for word in ("instruct", "chat", "-it"))
    return (
        1.0 if row.requests is not None or taught or row.sizes.vocab_size > 2**16 else constants.text_pieces
    )


def _summary(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Mean, p90 and p99, percentiles by the nearest rank."""
    ordered = np.sort(values)
    ranks = [math.ceil(share * len(ordered) - 1e-9) - 1 for share in (0.9, 0.99)]
    return float(values.mean()), float(ordered[ranks[0]]), float(ordered[ranks[1]])
