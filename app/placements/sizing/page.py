"""The tab Size: which GPUs, slices or groups serve an LLM at a rate within limits, and how many of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import streamlit as st

from app.charts.token_times import EngineLine, token_times
from app.components import saving
from app.components.progress_bar import with_bar
from app.placements.remembered import remembered
from app.placements.sizing import inputs as sizing_inputs
from app.shell import frame, widgets
from torchsplit_core.pictures.colours import PALETTE
from torchsplit_core.pictures.numbers import counted, escape_markdown, exact, short
from torchsplit_core.simulation.continuous.largest_rate import LoadedEngines
from torchsplit_core.sizing.engine_row import SizingRow
from torchsplit_core.sizing.load_curve import load_curve
from torchsplit_core.sizing.request import SizingRequest
from torchsplit_core.sizing.size import SizingTable, size
from torchsplit_core.sizing.summary import describe_unfit, headline, place_of
from torchsplit_core.sizing.table import size_csv
from torchsplit_core.workspace.store import Workspace

QUESTION = (
    "Which GPUs, MIG slices or groups of GPUs serve an LLM at your rate and within your limits, and how many?"
)
EMPTY = (
    "Choose the model, the rate of requests and what a user may wait, and press Size: you will see what each GPU type "
    "carries, which one reaches the rate with the fewest GPUs or at the least price, and what limits it."
)
MOST_SHOWN = 8
WIDTHS = {"engine on": st.column_config.TextColumn(width=250)}
MOST_REMEMBERED = 8
MOST_LINES = 4


def render(workspace: Workspace) -> None:
    """The whole tab."""
    st.write(QUESTION)
    stored = sizing_inputs.stored_inputs(workspace)
    with frame.picture_beside("size"):
        left, right = st.columns([24, 76], gap="medium")
    with left:
        inputs = sizing_inputs.render(workspace, stored or sizing_inputs.FIRST)
        if stored is None and st.button("Size", type="primary", width="stretch", key="size-first"):
            sizing_inputs.keep_inputs(workspace, inputs)
            st.rerun()
    with right, frame.fault_boundary():
        if stored is None:
            st.info(EMPTY)
            return
        if inputs != stored:
            sizing_inputs.keep_inputs(workspace, inputs)
        request = sizing_inputs.request_of(inputs)
        _render_table(_sized(request, whole=bool(st.session_state.get("size-all"))))


def _sized(request: SizingRequest, *, whole: bool) -> SizingTable:
    """The table; while it is simulated a bar says how far it is."""
    most = None if whole else MOST_SHOWN
    return remembered(
        "sizings", (repr(request), whole), MOST_REMEMBERED,
        lambda: with_bar(lambda progress: size(request, most_simulated=most, progress=progress)),
    )  # fmt: skip


def _render_table(table: SizingTable) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.badge("estimated", "yellow")
        st.caption("From the model's sizes and each GPU's published peaks; every rate by a simulation.")
    _cards(table)
    rows = table.best
    if rows:
        st.header("GPUs, slices and groups", anchor=False)
        saving.table(
            _columns(rows), f"{table.request.model}.size", key="size-table", alt="Engines by what they take",
            height="content", column_config=WIDTHS,
        )  # fmt: skip
        hidden = sum(row.fits for row in table.rows) - len(rows)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.toggle(
                "All that fit",
                key="size-all",
                persist_state="session",
                help="Simulates each, which takes some seconds.",
            )
            csv = size_csv(table) if st.session_state.get("size-all") else partial(_whole_csv, table.request)
            file = f"{saving.file_name(table.request.model)}.sizes.csv"
            st.download_button("All rows (CSV)", csv, file, "text/csv", on_click="ignore", key="size-csv")
            if hidden > 0:
                st.caption(f"The best of each type; {counted(hidden, 'more row')} would fit.")
    for sentence in (*describe_unfit(table), *(f"Left out: {reason}." for reason in table.left_out)):
        st.caption(escape_markdown(sentence))
    if rows:
        _chart(table, rows)


def _whole_csv(request: SizingRequest) -> str:
    return size_csv(size(request))


def _cards(table: SizingTable) -> None:
    """The best row in four figures, or what is nearest."""
    if not table.reaches:
        st.error(escape_markdown(headline(table)))
        return
    best, limits = table.rows[0], table.request.limits
    where = f"on slices {best.profile}" if best.profile else ""
    each = f"of {best.tensor_parallel} GPUs" if best.tensor_parallel > 1 else where
    price = "" if best.cost is None else f"; {best.cost:.4g} an hour"
    share = table.request.rate_rps / (best.engines or 1)
    at = "at that rate" if limits.given else f"at {short(share, 'req/s')} each"
    engines = counted(best.engines or 0, "engine")
    least = "Fewest GPUs" if best.cost is None else "Least price"
    interval = f"{short(best.low_rps)} to {short(best.high_rps)}: 90 % interval"
    cards = (
        (least, f"{best.gpus} × {best.gpu_type}", f"{engines} {each}{price}".strip()),
        ("Rate of one engine", short(best.rate_rps, "req/s"), interval),
        ("TTFT", short(best.ttft_ms, "ms"), f"{_limit(limits.max_ttft_ms)}p{limits.percentile:g} {at}"),
        ("TPOT", short(best.tpot_ms, "ms"), f"{_limit(limits.max_tpot_ms)}p{limits.percentile:g} {at}"),
    )  # fmt: skip
    widgets.metric_cards(cards)


def _limit(limit: float | None) -> str:
    return "" if limit is None else f"limit {exact(limit, 'ms')}; "


def _columns(rows: tuple[SizingRow, ...]) -> dict[str, list[Any]]:
    """A column for each figure; those that no row has are left out."""
    columns: dict[str, list[Any]] = {
        "engine on": [place_of(row) for row in rows],
        "engines": [row.engines for row in rows],
        "GPUs": [row.gpus for row in rows],
        "price an hour": [row.cost for row in rows],
        "req/s of one": [_rounded(row.rate_rps) for row in rows],
        "90 % interval": [f"{short(row.low_rps)} – {short(row.high_rps)}" for row in rows],
        "TTFT, ms": [_rounded(row.ttft_ms) for row in rows],
        "TPOT, ms": [_rounded(row.tpot_ms) for row in rows],
        "goodput, %": [None if row.goodput is None else round(100 * row.goodput, 1) for row in rows],
        "binds": [row.binds for row in rows],
        "weights, GiB": [_rounded(row.weights_gib) for row in rows],
        "KV cache, GiB": [_rounded(row.kv_gib) for row in rows],
        "max context": [row.max_context for row in rows],
    }
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _chart(table: SizingTable, rows: tuple[SizingRow, ...]) -> None:
    st.header("Times over the rate", anchor=False)
    by_label = {place_of(row): row for row in rows}
    best = list(dict.fromkeys(row.gpu_type for row in rows))
    first = [place_of(next(row for row in rows if row.gpu_type == name)) for name in best[:3]]
    chosen = widgets.multi_choice("Engines", list(by_label), first, "size-lines")[:MOST_LINES]
    if not chosen:
        st.caption("Choose an engine to see its times.")
        return
    colours = {label: PALETTE[number % len(PALETTE)] for number, label in enumerate(by_label)}
    curves = {label: _curve(table.request, by_label[label]) for label in chosen}
    limits = table.request.limits
    for column, (name, limit) in zip(
        st.columns(2), (("TTFT", limits.max_ttft_ms), ("TPOT", limits.max_tpot_ms)), strict=True
    ):
        lines = [_line(label, colours[label], curve, name) for label, curve in curves.items()]
        figure = token_times(lines, f"{name} p{limits.percentile:g}, ms", limit, dark=widgets.is_dark())
        with column:
            widgets.chart(
                figure,
                name,
                f"{table.request.model}.{name}",
                key=f"size-{name}",
                alt=f"{name} over the rate of requests",
            )
    if len(chosen) == MOST_LINES:
        st.caption(f"At most {MOST_LINES} are drawn.")


def _curve(request: SizingRequest, row: SizingRow) -> tuple[LoadedEngines, ...]:
    return remembered(
        "sizing curves", (repr(request), place_of(row)), MOST_REMEMBERED * MOST_LINES,
        lambda: load_curve(request, row),
    )  # fmt: skip


def _line(label: str, colour: str, curve: tuple[LoadedEngines, ...], name: str) -> EngineLine:
    pairs = [(point.rate_rps, point.ttft_ms if name == "TTFT" else point.tpot_ms) for point in curve]
    known = [(rate, time) for rate, time in pairs if time is not None]
    return EngineLine(label, colour, tuple(rate for rate, _ in known), tuple(time for _, time in known))
