"""Renders profiles, plans and simulated loads for notebooks, as HTML without scripts or style sheets."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from torchsplit_core.pictures.colours import UNKNOWN, model_colours
from torchsplit_core.pictures.numbers import counted, exact, percent, short
from torchsplit_core.pictures.slice_map import fleet_svg
from torchsplit_core.planning.confidence.formatting import bounded_models
from torchsplit_core.values import (
    PlannedModel,
    PlanOutcome,
    PlanRequest,
    Profile,
    ProfileRow,
    SimulationOutcome,
)
from torchsplit_core.values.profile import BASES
from torchsplit_core.values.simulation.outcome import ModelLoad, ResponseTimes, TokenTimes

LEVEL_COLOURS = {"green": "#2f8f5b", "amber": "#b9770e", "red": "#c0392b"}
MOST_ROWS = 24
"""Most rows of a profile that are shown; the whole catalogue has hundreds."""
CELL = "padding:.15em .9em .15em 0;text-align:left"
NUMBER = "padding:.15em .9em .15em 0;text-align:right;font-variant-numeric:tabular-nums"
STRIP_PX = 180
LEAST_MS = 1e-3
"""Where a logarithmic scale shows a time of zero."""


def plan_html(request: PlanRequest, plan: PlanOutcome, level: str, sentence: str) -> str:
    """The verdict, the slice map, a table of the models' figures, and the proof.

    `level` and `sentence` are those of the verdict (`latency_slo.verdict`).
    """
    colours = model_colours(model.name for model in request.models)
    demands = {model.name: model.demand_rps for model in request.models}
    parts = [
        f'<p><b style="color:{LEVEL_COLOURS[level]}">■ {html.escape(sentence)}</b></p>',
        f"<p>{html.escape(proof_words(plan))}</p>",
        *(f"<p>{html.escape(conflict.message)}</p>" for conflict in plan.conflicts),
    ]
    if any(gpu.slices for gpu in plan.gpus):
        parts.append(fleet_svg(plan, colours, request))
    if plan.models:
        head = (
            "model", "throughput, req/s", "demand", "× its demand", "90 % interval", "basis", "service p95, ms",
            "runs as",
        )  # fmt: skip
        worst_first = sorted(plan.models, key=lambda model: model.normalised)
        bounded = bounded_models(plan)
        rows = [_model_row(model, demands[model.name], colours, bounded) for model in worst_first]
        parts.append(_table(head, rows))
    return _block(*parts, *_warnings(plan.warnings))


def proof_words(plan: PlanOutcome) -> str:
    """Status, objective, bound, gap and number of proven levels."""
    text = f"{plan.status}: {plan.objective.kind} {exact(plan.objective.value)}"
    if plan.status not in ("optimal", "feasible"):
        return text
    return (
        f"{text}, bound {exact(plan.objective.bound)}, gap {percent(plan.objective.gap)}, "
        f"{counted(plan.objective.proven_levels, 'level')} proven"
    )


def _model_row(
    model: PlannedModel, demand: float, colours: Mapping[str, str], bounded: Collection[str]
) -> Sequence[str]:
    colour = colours.get(model.name, UNKNOWN)
    return (
        f'<span style="color:{colour}">■</span> {html.escape(model.name)}',
        exact(round(model.throughput_rps, 2)),
        exact(demand),
        # Rounded down, so that a missed demand never shows as met.
        exact(math.floor(1e3 * model.throughput_rps / demand + 1e-6) / 1e3),
        _between(model.low_rps, model.high_rps) if model.name in bounded else "n/a",
        model.basis or "n/a",
        "n/a" if model.latency_ms is None else exact(round(model.latency_ms, 2)),
        html.escape(model.variant or "n/a"),
    )


def profile_words(profile: Profile) -> str:
    """Numbers of rows by basis, and of failures."""
    counts = Counter(row.basis for row in profile.rows)
    text = ", ".join(f"{exact(counts[basis])} {basis}" for basis in BASES if counts[basis])
    failed = f"; {counted(len(profile.failures), 'point')} failed" if profile.failures else ""
    return f"{text or 'no rows'}{failed}"


def profile_html(profile: Profile) -> str:
    """A table of the best throughput on each slice by basis, measured first, with bars on one scale."""
    best: dict[tuple[str, str, str], ProfileRow] = {}
    for row in profile.rows:
        key = (row.gpu_type, row.profile or "whole", row.basis)
        if key not in best or row.throughput_rps > best[key].throughput_rps:
            best[key] = row
    rows = sorted(best.items(), key=lambda item: (BASES.index(item[1].basis), item[0]))
    scale = max((row.throughput_rps for _, row in rows[:MOST_ROWS]), default=1.0)
    head = ("slice", "batch", "throughput, req/s", "", "90 % interval", "p95, ms", "memory, GiB", "basis")
    cells = [
        (
            html.escape(f"{kind} {slice_}"),
            exact(row.batch_size),
            short(row.throughput_rps),
            _bar(row.throughput_rps / scale),
            _between(row.low_rps, row.high_rps),
            short(row.latency_ms),
            short(row.memory_gib),
            row.basis,
        )
        for (kind, slice_, _), row in rows[:MOST_ROWS]
    ]
    more = len(rows) - MOST_ROWS
    return _block(
        f"<p><b>{html.escape(profile.source)}</b>: {html.escape(profile_words(profile))}</p>",
        _table(head, cells) if cells else "",
        f"<p>{counted(more, 'more slice')} not shown</p>" if more > 0 else "",
    )


def load_words(outcome: SimulationOutcome) -> str:
    """p95 of each model."""
    return "p95: " + ", ".join(
        f"{model.name} {short(model.response_ms.p95, 'ms')}" for model in outcome.models
    )


def load_html(outcome: SimulationOutcome) -> str:
    """A table of the models' response times, waits included; bars from p50 to p99 on one logarithmic scale mark p95.

    Another has the tokens' times of models with engines.
    """
    colours = model_colours(model.name for model in outcome.models)
    known = [
        max(value, LEAST_MS)
        for model in outcome.models
        for value in (model.response_ms.p50, model.response_ms.p99)
        if value is not None
    ]
    ends = (min(known), max(known)) if known else (1.0, 1.0)
    head = ("model", "offered, req/s", "carried at most", "p50, ms", "p95, ms", "", "p99, ms", "mean batch")
    with_tokens = [model for model in outcome.models if model.ttft_ms is not None]
    token_head = (
        "model",
        "TTFT p50, ms",
        "TTFT p95, ms",
        "TPOT p50, ms",
        "TPOT p95, ms",
        "goodput",
        "output tokens/s",
    )
    return _block(
        _table(head, [_load_row(model, ends, colours[model.name]) for model in outcome.models]),
        _table(token_head, [_token_row(model, colours[model.name]) for model in with_tokens])
        if with_tokens
        else "",
        *_warnings(outcome.warnings),
    )


def _load_row(model: ModelLoad, ends: tuple[float, float], colour: str) -> Sequence[str]:
    times = model.response_ms
    low, high = model.response_low_ms, model.response_high_ms
    drawn = f" ({_between(low.p95, high.p95)})" if low is not None and high is not None else ""
    more = "" if model.stable is not False else " <b>more comes than it carries</b>"
    return (
        f'<span style="color:{colour}">■</span> {html.escape(model.name)}{more}',
        short(model.offered_rps),
        short(model.capacity_rps),
        short(times.p50),
        f"{short(times.p95)}{drawn}",
        _percentile_strip(times, ends, colour),
        short(times.p99),
        short(model.mean_batch),
    )


def _token_row(model: ModelLoad, colour: str) -> Sequence[str]:
    ttft, tpot = model.ttft_ms or TokenTimes(), model.tpot_ms or TokenTimes()
    return (
        f'<span style="color:{colour}">■</span> {html.escape(model.name)}',
        short(ttft.p50),
        short(ttft.p95),
        short(tpot.p50),
        short(tpot.p95),
        percent(model.goodput),
        short(model.output_tokens_per_s),
    )


def _percentile_strip(times: ResponseTimes, ends: tuple[float, float], colour: str) -> str:
    if times.p50 is None or times.p95 is None or times.p99 is None:
        return "n/a"
    span = math.log(ends[1] / ends[0]) or 1.0
    at = [
        6 + (STRIP_PX - 12) * math.log(max(value, LEAST_MS) / ends[0]) / span
        for value in (times.p50, times.p95, times.p99)
    ]
    return (
        f'<svg width="{STRIP_PX}" height="14" role="img" aria-label="p50 to p99">'
        f'<line x1="{at[0]:.1f}" x2="{at[2]:.1f}" y1="7" y2="7" stroke="{colour}" stroke-width="4" '
        f'stroke-linecap="round" opacity=".5"/><circle cx="{at[1]:.1f}" cy="7" r="4.5" fill="{colour}"/></svg>'
    )


def _bar(share: float) -> str:
    return (
        f'<svg width="{STRIP_PX}" height="10" role="img" aria-label="{percent(share)}">'
        f'<rect width="{max(1.0, STRIP_PX * share):.1f}" height="10" fill="currentColor" opacity=".45"/></svg>'
    )


def _between(low: float | None, high: float | None) -> str:
    return "n/a" if low is None or high is None else f"{short(low)} to {short(high)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table. Cells are HTML; columns whose first cell is not a number are left-aligned."""
    styles = [NUMBER if _is_number(cell) else CELL for cell in rows[0]]
    lines = [_row("th", head, styles), *(_row("td", row, styles) for row in rows)]
    return f'<table style="border-collapse:collapse;margin:.6em 0">{"".join(lines)}</table>'


def _row(kind: str, cells: Sequence[str], styles: Sequence[str]) -> str:
    rendered = (f'<{kind} style="{style}">{cell}</{kind}>' for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(rendered)}</tr>"


def _is_number(cell: str) -> bool:
    return cell == "n/a" or cell[:1].isdigit()


def _warnings(warnings: Iterable[str]) -> list[str]:
    return [f"<p>Note: {html.escape(text)}</p>" for text in warnings]


def _block(*parts: str) -> str:
    return f'<div style="max-width:76rem;overflow-x:auto">{"".join(parts)}</div>'
