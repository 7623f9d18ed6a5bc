"""A sizing as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.sizing.engine_row import SizingRow
from torchsplit_core.sizing.size import SizingTable
from torchsplit_core.sizing.summary import describe_unfit, headline, place_of

HEADS = ("engine on", "req/s", "90 %", "TTFT", "TPOT", "eng", "GPUs", "binds")


def table_text(table: SizingTable) -> str:
    """A headline, the first rows, and what does not fit and why."""
    return "\n".join([headline(table), *_lines(table)]) + "\n"


def _lines(table: SizingTable) -> Iterator[str]:
    request = table.request
    fitting = [row for row in table.rows if row.fits]
    shown = table.best
    if shown:
        priced = any(row.cost is not None for row in shown)
        heads = (*HEADS[:-1], "cost/h", HEADS[-1]) if priced else HEADS
        yield ""
        yield from _aligned([heads, *(_cells(row, priced=priced) for row in shown)])
        limits = request.limits
        loads = f"p{limits.percentile:g} in ms at req/s of one engine"
        if not limits.given:
            loads = f"p{limits.percentile:g} in ms at the engine's share of {request.rate_rps:g} requests/s"
        yield f"\nTTFT, TPOT: {loads}. 90 %: interval of req/s. eng: engines. All is estimated."
    if len(fitting) > len(shown):
        yield f"{len(fitting) - len(shown)} more fit: --csv lists all."
    yield from describe_unfit(table)


def _cells(row: SizingRow, *, priced: bool) -> tuple[str, ...]:
    cells = (
        place_of(row),
        _figure(row.rate_rps),
        "n/a" if row.low_rps is None else f"{_figure(row.low_rps, 2)}–{_figure(row.high_rps, 2)}",
        _figure(row.ttft_ms),
        _figure(row.tpot_ms),
        "n/a" if row.engines is None else str(row.engines),
        "n/a" if row.gpus is None else str(row.gpus),
    )
    return (*cells, *((_figure(row.cost, 4),) if priced else ()), row.binds)


def _figure(value: float | None, digits: int = 3) -> str:
    return "n/a" if value is None else f"{float(f'{value:.{digits}g}'):,.10g}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Texts to the left, figures to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    last = len(widths) - 1
    for row in rows:
        cells = [
            cell.ljust(width) if place in (0, last) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
