"""The demand of a day from a trace of days: which column is which model, and windows of least cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import streamlit as st

from app.shell import frame
from torchsplit_core.pictures.numbers import escape_markdown
from torchsplit_core.tables.demand_trace.request_windows import (
    WindowSettings,
    trace_of_models,
    with_trace_windows,
)
from torchsplit_core.tables.demand_trace.trace_csv import DemandTrace, read_demand_trace
from torchsplit_core.tables.demand_trace.window_cut import WindowDemand
from torchsplit_core.tables.sheet import decode
from torchsplit_core.values import PlanRequest

SLOT_S = 600
"""Bounds of windows are multiples of ten minutes, or of the trace's step if that is more."""
FIRST_WINDOWS, MOST_WINDOWS = 4, 24
NO_COLUMN = "its demand, all day"
DEMANDS = {"largest": "the largest of all days", "p95": "what 95 % of the moments do not exceed"}


@dataclass(frozen=True, slots=True)
class MappedTrace:
    """A trace whose columns are models, and the request with windows cut from it where a press asked for them."""

    rates: DemandTrace
    cut: PlanRequest | None


def render(name: str, request: PlanRequest) -> MappedTrace | None:
    """The controls; None until a trace has a column of some model."""
    file = st.file_uploader(
        "A trace (CSV): time_s, seconds since a midnight UTC, and a column of req/s a model",
        type=["csv"], key=f"day-trace {name}", max_upload_size=32,
    )  # fmt: skip
    if file is None:
        st.caption("By the minute or ten, of a day or weeks; moments without a row are not counted.")
        return None
    with frame.fault_boundary():
        return _mapped(name, request, _read(file.getvalue(), file.name))
    return None


@st.cache_data(max_entries=4, show_spinner="Reading the trace")
def _read(data: bytes, origin: str) -> DemandTrace:
    return read_demand_trace(decode(data, origin), origin)


def _mapped(name: str, request: PlanRequest, trace: DemandTrace) -> MappedTrace | None:
    columns = list(trace.rates)
    entries: list[tuple[str, str]] = []
    places = st.columns(min(3, len(request.models)))
    for number, model in enumerate(request.models):
        place = places[number % len(places)]
        offered = [NO_COLUMN, *columns]
        start = offered.index(model.name) if model.name in columns else 0
        column = place.selectbox(
            f"Column of {model.name}", offered, start, key=f"day-column {name} {model.name}"
        )
        if column != NO_COLUMN:
            entries.append((column, model.name))
    left, middle, right = st.columns(3)
    count = left.number_input("Windows", 1, MOST_WINDOWS, FIRST_WINDOWS, key=f"day-count {name}")
    demand = middle.selectbox(
        "Demand of a window", DEMANDS, format_func=DEMANDS.__getitem__, key=f"day-demand {name}"
    )
    scale = right.number_input(
        "Times the trace", 1e-6, 1e6, 1.0, format="%.6g", key=f"day-scale {name}",
        help="A trace of another fleet: its rates times this.",
    )  # fmt: skip
    used = [column for column, _ in entries]
    if not entries or len(set(used)) < len(used):
        st.caption("Choose a column for at least one model, each column once.")
        return None
    mapped, notes = trace_of_models(_of_columns(trace, used), request, entries, {None: float(scale)})
    st.caption(
        escape_markdown(
            f"{trace.days:.4g} days, a row every {trace.step_s / 60:g} min. {'; '.join(notes)}".rstrip(" ;")
        )
    )
    settings = WindowSettings(int(count), cast("WindowDemand", demand), max(SLOT_S, trace.step_s))
    pressed = st.button("Cut into windows of least cost", key="day-cut")
    return MappedTrace(mapped, with_trace_windows(request, mapped, settings)[0] if pressed else None)


def _of_columns(trace: DemandTrace, columns: list[str]) -> DemandTrace:
    """The trace of these columns alone."""
    return DemandTrace(trace.first_s, trace.step_s, {column: trace.rates[column] for column in columns})
