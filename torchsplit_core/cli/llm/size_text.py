"""A sizing as a table for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchsplit_core.sizing.engine_row import SizingRow
from torchsplit_core.sizing.size import SizingTable
from torchsplit_core.sizing.summary import headline, place_of

HEADS = ("engine on", "req/s", "90 %", "TTFT", "TPOT", "eng", "GPUs", "binds")


def table_text(table: SizingTable, most: int) -> str:
    """A headline, the first rows, and what does not fit and why."""
    return "\n".join([headline(table), *_lines(table, most)]) + "\n"


def _lines(table: SizingTable, most: int) -> Iterator[str]:
    request = table.request
    fitting = [row for row in table.rows if row.fits]
    shown = table.simulated[:most]
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
    for binds in ("memory", "KV"):
        left = [row for row in table.rows if not row.fits and row.binds == binds]
        if left:
            nearest = min(left, key=lambda row: (row.weights_gib, -row.kv_blocks))
            what = "Too little memory" if binds == "memory" else "Too small a KV cache"
            yield f"{what}: {_places(left)} ({place_of(nearest)}: {nearest.note})."


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


def _places(rows: Sequence[SizingRow]) -> str:
    """Places by GPU type: A30-24GB 1g.6gb, 2g.12gb; L4-24GB, 2 ×."""
    by_type: dict[str, list[str]] = {}
    for row in rows:
        whole = "whole" if row.tensor_parallel == 1 else f"{row.tensor_parallel} ×"
        by_type.setdefault(row.gpu_type, []).append(row.profile or whole)
    return "; ".join(f"{name} {', '.join(places)}" for name, places in by_type.items())
