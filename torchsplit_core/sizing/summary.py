"""A sizing in words: its best row, and where none reaches the rate, what is nearest."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.sizing.engine_row import SizingRow
from torchsplit_core.sizing.request import SizingRequest
from torchsplit_core.sizing.size import SizingTable


def headline(table: SizingTable) -> str:
    """What serves the rate with the least, or that nothing does, and the nearest limits that something keeps."""
    request = table.request
    wanted = f"{request.rate_rps:g} requests/s of {request.model} ({request.prompt_tokens:,} tokens in, "
    wanted += f"{request.output_tokens:,} out)"
    if table.reaches:
        best = table.rows[0]
        price = "" if best.cost is None else f", {best.cost:.4g} an hour"
        engines = "one engine" if best.engines == 1 else f"{best.engines} engines"
        each = "" if best.tensor_parallel == 1 else f" of {best.tensor_parallel} GPUs"
        each = each if best.profile is None else f" on slices {best.profile}"
        return f"{wanted} take {best.gpus} × {best.gpu_type}, {engines}{each}{price}."
    return f"{wanted}: nothing serves them{describe_limits(request)}. {_nearest(table)}"


def place_of(row: SizingRow) -> str:
    """What one engine runs on: a slice, a GPU, a group."""
    if row.profile is not None:
        return f"{row.gpu_type} {row.profile}"
    return row.gpu_type if row.tensor_parallel == 1 else f"{row.tensor_parallel} × {row.gpu_type}"


def describe_limits(request: SizingRequest) -> str:
    """The limits as a part of a sentence; "" without any."""
    limits = request.limits
    texts = [
        f"{name} of {limit:g} ms"
        for name, limit in (("TTFT", limits.max_ttft_ms), ("TPOT", limits.max_tpot_ms))
        if limit is not None
    ]
    return f" within a {' and a '.join(texts)} at p{limits.percentile:g}" if texts else ""


def describe_unfit(table: SizingTable) -> tuple[str, ...]:
    """A sentence on the rows that do not fit for each reason: which, and how far the nearest is from it."""
    sentences = []
    for binds, what in (("memory", "Too little memory"), ("KV", "Too small a KV cache")):
        rows = [row for row in table.rows if not row.fits and row.binds == binds]
        if rows:
            sentences.append(f"{what}: {_places(rows)}. Nearest, {place_of(rows[0])}: {rows[0].note}.")
    return tuple(sentences)


def _places(rows: Sequence[SizingRow]) -> str:
    """Places by GPU type: A30-24GB 1g.6gb, 2g.12gb; L4-24GB whole, 2 GPUs."""
    by_type: dict[str, list[str]] = {}
    for row in rows:
        whole = "whole" if row.tensor_parallel == 1 else f"{row.tensor_parallel} GPUs"
        by_type.setdefault(row.gpu_type, []).append(row.profile or whole)
    return "; ".join(f"{name} {', '.join(places)}" for name, places in by_type.items())


def _nearest(table: SizingTable) -> str:
    near = table.rows[0]
    if not near.fits:
        return f"No engine fits. Nearest, {place_of(near)}: {near.note}."
    tpot = "" if near.tpot_ms is None else f" and a TPOT of {near.tpot_ms:.3g} ms"
    return f"Nearest: a TTFT of {near.ttft_ms:.3g} ms{tpot}, of a request alone on {place_of(near)}."
