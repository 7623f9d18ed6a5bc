"""Demand by window, as a table and as bars that are drawn: two views of the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pandas as pd
import streamlit as st

from app.components.demand_bars import DemandBar, demand_bars
from app.plans.day import window_table
from app.plans.day.window_table import END, NAME, START, Row
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import DemandWindow, PlanRequest

MOST_BARS = 48
"""More windows are typed: their bars would be too narrow to draw."""


def render(name: str, request: PlanRequest) -> list[Row]:
    """The rows as they stand: those of the request, edited in the table or drawn."""
    state = f"day-rows {name} {request_hash(request)[:8]}"
    turn = f"{state} turn"
    begun = st.session_state.setdefault(state, window_table.rows_of(request))
    number = st.session_state.setdefault(turn, 0)
    chart = st.container()
    config = {
        model.name: st.column_config.NumberColumn(f"{model.name}, req/s", min_value=0.0, format="%.6g")
        for model in request.models
    }
    edited = st.data_editor(
        pd.DataFrame(begun), key=f"day-windows {state} {number}", num_rows="dynamic", hide_index=True,
        column_config=config, width="stretch",
    )  # fmt: skip
    rows = [{str(key): cell for key, cell in row.items()} for row in edited.to_dict("records")]

    def redraw(values: Mapping[int, float], model: str) -> None:
        # A table takes new cells only under a new key.
        st.session_state[state] = with_values(rows, model, values)
        st.session_state[turn] = number + 1

    with chart:
        _bars(name, request, rows, redraw)
    return rows


def _bars(
    name: str, request: PlanRequest, rows: list[Row], redraw: Callable[[Mapping[int, float], str], None]
) -> None:
    if not 1 <= len(rows) <= MOST_BARS:
        return
    models = [model.name for model in request.models]
    model = models[0]
    if len(models) > 1:
        model = st.selectbox("Draw the demand of", models, key=f"day-drawn {name}") or model
    demand_bars(
        f"Demand of {model} by window", model, bars_of(rows, model), key=f"day-bars {name}",
        on_drawn=lambda values: redraw(values, model),
    )  # fmt: skip
    st.caption("Drag over the bars, or move one by the arrow keys; the table has the same figures.")


def bars_of(rows: list[Row], model: str) -> list[DemandBar]:
    """A bar for each row."""
    return [_bar(row, number, model) for number, row in enumerate(rows, 1)]


def _bar(row: Row, number: int, model: str) -> DemandBar:
    texts = [str(row[key]) if isinstance(row.get(key), str) else "" for key in (NAME, START, END)]
    value = row.get(model)
    rate = float(value) if isinstance(value, int | float) and math.isfinite(value) and value >= 0 else None
    return DemandBar(texts[0] or f"window {number}", f"{texts[1]}–{texts[2]}", _hours(*texts), rate)


def _hours(name: str, start: str, end: str) -> float:
    """How long a row is; one hour where it has no times yet."""
    try:
        return DemandWindow(name, start, end, 0.0).hours
    except ValueError:
        return 1.0


def with_values(rows: list[Row], model: str, values: Mapping[int, float]) -> list[Row]:
    """The rows with new rates of one model, by place."""
    return [row | ({model: values[place]} if place in values else {}) for place, row in enumerate(rows)]
