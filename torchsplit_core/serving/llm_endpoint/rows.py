"""The answers of a stage as one row of a table of measured LLM serving, and as lines for a reader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchsplit_core.serving.llm_endpoint.open_loop import StageAnswers

_COLUMNS = """
experiment model gpu tp dp precision max_num_seqs max_num_batched_tokens max_model_len
gpu_memory_utilization kv_blocks cpu_kv_blocks block_tokens workload system_prompt_tokens
question_tokens output_tokens users multi_turn stage rate_rps duration_s ttft_mean_ms ttft_p90_ms
ttft_p99_ms itl_mean_ms e2e_mean_ms e2e_p90_ms e2e_p99_ms engine source note config requests basis
"""
COLUMNS = tuple(_COLUMNS.split())
"""Of a row of `estimate-serving`."""
REQUEST_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "last_token_s")
"""Of a file of requests; `estimate-serving` reads the first three."""


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Milliseconds: mean and percentiles by the nearest rank."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class StageFigures:
    """What a stage's answers took, in ms from when a request was due, which waiting for the client is part of.

    `itl_ms`: all gaps between tokens, Σ (last - first) / Σ (tokens - 1), None where no answer has two. `tpot_ms`:
    (last - first) / (tokens - 1) of each answer of two tokens or more. Tokens are means of the answers that came;
    `prompt_tokens` is None where the endpoint counts none. `late_ms`: how late the client sent, 99th percentile.
    `output_tokens_per_s`: from the first arrival to the last token. `problems`: why requests failed, with counts.
    """

    sent: int
    answered: int
    ttft_ms: LatencyFigures
    itl_ms: float | None
    tpot_ms: LatencyFigures | None
    e2e_ms: LatencyFigures
    prompt_tokens: float | None
    output_tokens: float
    output_tokens_per_s: float
    late_ms: float
    problems: Mapping[str, int]


def latency_figures(values_s: Sequence[float]) -> LatencyFigures:
    """Figures in ms of at least one time in seconds."""
    ordered = sorted(1e3 * value for value in values_s)

    def rank(percent: int) -> float:
        return ordered[max(1, -(-percent * len(ordered) // 100)) - 1]

    return LatencyFigures(math.fsum(ordered) / len(ordered), rank(50), rank(90), rank(99), ordered[-1])


def stage_figures(measured: StageAnswers) -> StageFigures | None:
    """The figures of a stage; None where no request was answered."""
    answers = [answer for answer in measured.answers if not answer.problem]
    problems = Counter(answer.problem for answer in measured.answers if answer.problem)
    if not answers:
        return None
    longer = [answer for answer in answers if answer.tokens > 1 and len(answer.token_times_s) > 1]
    spans = [answer.token_times_s[-1] - answer.token_times_s[0] for answer in longer]
    gaps = sum(answer.tokens - 1 for answer in longer)
    tpot = [span / (answer.tokens - 1) for span, answer in zip(spans, longer, strict=True)]
    counted = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    tokens = sum(answer.tokens for answer in answers)
    over_s = max(answer.token_times_s[-1] for answer in answers) - min(answer.due_s for answer in answers)
    return StageFigures(
        sent=len(measured.answers),
        answered=len(answers),
        ttft_ms=latency_figures([answer.token_times_s[0] - answer.due_s for answer in answers]),
        itl_ms=1e3 * math.fsum(spans) / gaps if gaps else None,
        tpot_ms=latency_figures(tpot) if tpot else None,
        e2e_ms=latency_figures([answer.token_times_s[-1] - answer.due_s for answer in answers]),
        prompt_tokens=sum(counted) / len(counted) if counted else None,
        output_tokens=tokens / len(answers),
        output_tokens_per_s=tokens / over_s if over_s > 0 else 0.0,
        late_ms=latency_figures([max(0.0, answer.sent_s - answer.due_s) for answer in measured.answers]).p99,
        problems=dict(problems.most_common()),
    )


def serving_row(
    number: int,
    measured: StageAnswers,
    figures: StageFigures | None,
    settings: Mapping[str, str],
    asked_prompt_tokens: int,
    asked_output_tokens: int,
    notes: Sequence[str],
) -> dict[str, str]:
    """The row of stage `number`; `settings` are columns that the user or the endpoint gave.

    Without an answer its figures are empty.
    """
    row = dict.fromkeys(COLUMNS, "") | {
        "tp": "1",
        "dp": "1",
        "system_prompt_tokens": "0",
        "multi_turn": "no",
        "workload": "independent requests",
        "stage": str(number),
        "rate_rps": f"{measured.stage.rate_rps:.9g}",
        "duration_s": _text(measured.stage.duration_s),
        "question_tokens": str(asked_prompt_tokens),
        "output_tokens": str(asked_output_tokens),
        "basis": "measured",
    }
    row |= settings
    notes = [f"{len(measured.answers)} requests sent", *notes]
    if figures is not None:
        if figures.prompt_tokens is not None:
            row["question_tokens"] = str(round(figures.prompt_tokens))
        row["output_tokens"] = str(max(1, round(figures.output_tokens)))
        for name, times in (("ttft", figures.ttft_ms), ("e2e", figures.e2e_ms)):
            row |= {
                f"{name}_mean_ms": _text(times.mean),
                f"{name}_p90_ms": _text(times.p90),
                f"{name}_p99_ms": _text(times.p99),
            }
        row["itl_mean_ms"] = "" if figures.itl_ms is None else _text(figures.itl_ms)
    problems = Counter(answer.problem for answer in measured.answers if answer.problem)
    if problems:
        notes.append(f"{problems.total()} failed and are in no figure: {problem_text(problems)}")
    row["note"] = "; ".join(notes)
    return row


def problem_text(problems: Mapping[str, int], most: int = 3) -> str:
    """The commonest problems with their counts."""
    listed = sorted(problems.items(), key=lambda item: -item[1])
    text = ", ".join(f"{count}: {problem}" for problem, count in listed[:most])
    return text + (f", and {len(listed) - most} more kinds" if len(listed) > most else "")


def request_rows(measured: StageAnswers, asked_prompt_tokens: int) -> list[dict[str, str]]:
    """Each answered request of a stage, seconds from its start; for `requests` of a row, or a simulation."""
    return [
        {
            "arrival_s": f"{answer.due_s - measured.began_s:.6f}",
            "prompt_tokens": str(answer.prompt_tokens or asked_prompt_tokens),
            "output_tokens": str(answer.tokens),
            "first_token_s": f"{answer.token_times_s[0] - measured.began_s:.6f}",
            "last_token_s": f"{answer.token_times_s[-1] - measured.began_s:.6f}",
        }
        for answer in measured.answers
        if not answer.problem
    ]


def table_text(stages: Sequence[StageAnswers], figures: Sequence[StageFigures | None]) -> str:
    """The stages as a table for a terminal: ms, at the client."""
    head = (
        "requests/s", "sent", "failed", "prompt", "output", "TTFT mean", "p50", "p90", "p99", "TPOT mean", "p90",
        "ITL mean", "whole mean", "p50", "p90", "p99", "tokens/s",
    )  # fmt: skip
    lines: list[tuple[str, ...]] = [head]
    for measured, figure in zip(stages, figures, strict=True):
        sent = len(measured.answers)
        start = (_short(measured.stage.rate_rps), str(sent))
        if figure is None:
            lines.append((*start, str(sent), *("n/a",) * (len(head) - 3)))
            continue
        ttft, tpot, e2e = figure.ttft_ms, figure.tpot_ms, figure.e2e_ms
        lines.append(
            (
                *start,
                str(sent - figure.answered),
                _short(figure.prompt_tokens),
                _short(figure.output_tokens),
                *map(_short, (ttft.mean, ttft.p50, ttft.p90, ttft.p99)),
                *(("n/a", "n/a") if tpot is None else (_short(tpot.mean), _short(tpot.p90))),
                _short(figure.itl_ms),
                *map(_short, (e2e.mean, e2e.p50, e2e.p90, e2e.p99)),
                _short(figure.output_tokens_per_s),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def _short(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _text(value: float) -> str:
    """Three digits after the point, none where they are zeros: microseconds of a figure in ms."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
