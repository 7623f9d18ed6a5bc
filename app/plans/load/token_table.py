"""Models whose engines batch continuously, under load: tokens' times, goodput and the KV cache. No streamlit here."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from app.format.html import table_html
from app.plans.load.results import format_attainment, format_with_interval
from app.plans.load.runs import ModelRun, SimulationRuns
from torchsplit_core.pictures.numbers import exact, short


def token_runs(runs: SimulationRuns) -> tuple[ModelRun, ...]:
    """The runs of models with engines."""
    return tuple(run for run in runs.models if run.load.ttft_ms is not None)


def token_table_of(runs: SimulationRuns, colours: Mapping[str, str]) -> str:
    """A table of these models as HTML."""
    head = (
        '<th>model</th><th class="n">TTFT p50, ms</th><th class="n">TTFT p95, ms</th><th class="n">TPOT p50, ms</th>'
        '<th class="n">TPOT p95, ms</th><th class="n">ITL p99, ms</th><th class="n">goodput</th>'
        '<th class="n">output tokens/s</th><th class="n">preemptions</th><th class="n">KV blocks, most</th>'
    )
    return table_html(head, [_row(run, colours) for run in token_runs(runs)])


def _row(run: ModelRun, colours: Mapping[str, str]) -> str:
    load = run.load
    cells = []
    for times, widths in ((load.ttft_ms, load.ttft_ci95_ms), (load.tpot_ms, load.tpot_ci95_ms)):
        for name in ("p50", "p95"):
            cells.append(format_with_interval(getattr(times, name, None), getattr(widths, name, None)))
    cells += [
        short(None if load.itl_ms is None else load.itl_ms.p99),
        format_attainment(load.goodput),
        short(load.output_tokens_per_s),
        exact(load.preemptions),
        exact(_most_blocks(run)),
    ]
    inner = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    swatch = f'<i class="swatch" style="background:{colours.get(load.name, "#888")}"></i>'
    return f'<tr><td class="name">{swatch}{html.escape(load.name)}</td>{inner}</tr>'


def token_table(runs: SimulationRuns) -> list[dict[str, Any]]:
    """A row for each of these models with every figure, for the CSV file; None is n/a."""
    rows = []
    for run in token_runs(runs):
        load = run.load
        row: dict[str, Any] = {"model": load.name}
        for word, times in (("TTFT", load.ttft_ms), ("TPOT", load.tpot_ms), ("ITL", load.itl_ms)):
            for name in ("mean", "p50", "p90", "p95", "p99", "max"):
                row[f"{word} {name} ms"] = getattr(times, name, None)
        rows.append(
            {
                **row,
                "goodput %": None if load.goodput is None else 100 * load.goodput,
                "prompt tokens/s": load.prompt_tokens_per_s,
                "output tokens/s": load.output_tokens_per_s,
                "preemptions": load.preemptions,
                "cut requests": load.cut_requests,
                "KV blocks, most": _most_blocks(run),
                "basis": "simulated",
            }
        )
    return rows


def _most_blocks(run: ModelRun) -> int | None:
    peaks = [server.kv_peak_blocks for server in run.servers if server.kv_peak_blocks is not None]
    return max(peaks, default=None)
