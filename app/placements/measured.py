"""The tab Measured: predictions of measured LLM serving beside the figures that were measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from app.charts.measured_serving import ServingPoint, measured_serving
from app.components import saving
from app.components.progress_bar import with_bar
from app.placements.remembered import remembered
from app.session.workspace import remember
from app.shell import frame, widgets
from app.shell.inputs import text_of
from torchsplit_core import bundle
from torchsplit_core.pictures.numbers import counted, escape_markdown, percent
from torchsplit_core.serving_estimates.table import EstimatedServing, ServingEstimates, estimate_serving
from torchsplit_core.workspace.store import Workspace

QUESTION = "How near are the estimates to what you measured?"
EMPTY = (
    "Choose a table of measured serving, a row a stage (model, gpu, tp, rate_rps, question_tokens, output_tokens, and "
    "what was measured: ttft_mean_ms, itl_mean_ms, e2e_mean_ms), or look at the example. You will see each figure "
    "predicted without itself, with its 90 % interval, beside the measured one."
)
EXAMPLE = "examples/llm_serving.csv"
FITTED = " The estimates' constants were fitted on these rows: on other engines errors are larger."
SETTING = "measured serving"
"""The workspace's setting with the last table: its name and its text."""
MOST_STORED = 2**18
"""Characters of a table that the workspace keeps; a larger one stays in the session."""
MOST_REMEMBERED = 4
FIGURES = (("TTFT", "ttft"), ("Time per token", "itl"), ("Whole response", "e2e"))
"""Figures with intervals, and the beginning of their columns."""


def render(workspace: Workspace) -> None:
    """The whole tab."""
    st.write(QUESTION)
    _render_choice(workspace)
    name, text = _table(workspace)
    if text is None:
        st.info(EMPTY)
        return
    with frame.fault_boundary():
        _render_estimates(name, _estimated(name, text))


def _render_choice(workspace: Workspace) -> None:
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    with left, frame.fault_boundary():
        file = st.file_uploader(
            "Rows (CSV)", type=["csv"], key=f"measured-file {workspace.id}", max_upload_size=8
        )
        if file is not None and file.file_id != st.session_state.get(_seen(workspace)):
            st.session_state[_seen(workspace)] = file.file_id
            _keep(workspace, file.name, text_of(file.getvalue(), file.name))
    with right:
        if st.button("Show the example", key="measured-example"):
            _keep(workspace, EXAMPLE, (bundle.root() / EXAMPLE).read_text(encoding="utf-8"))


def _seen(workspace: Workspace) -> str:
    return f"measured file read {workspace.id}"


def _keep(workspace: Workspace, name: str, text: str) -> None:
    st.session_state[f"{SETTING} {workspace.id}"] = (name, text)
    if len(text) <= MOST_STORED:
        remember(workspace, SETTING, [name, text])


def _table(workspace: Workspace) -> tuple[str, str | None]:
    """Name and text of the last table: of this session, else of the workspace; None without one."""
    known = st.session_state.get(f"{SETTING} {workspace.id}") or workspace.setting(SETTING)
    return (str(known[0]), str(known[1])) if known else ("", None)


def _estimated(name: str, text: str) -> ServingEstimates:
    return remembered(
        "serving estimates", text, MOST_REMEMBERED, lambda: with_bar(partial(_estimate, name, text))
    )


def _estimate(name: str, text: str, progress: Any) -> ServingEstimates:
    return estimate_serving(text, origin=name, progress=progress)


def _render_estimates(name: str, estimates: ServingEstimates) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        widgets.badge("estimated", "yellow")
        st.caption(
            escape_markdown(
                f"{name}: {estimates.summary}. A row's own figures play no part in its prediction."
            )
        )
    points = {title: _points(estimates.rows, column) for title, column in FIGURES}
    if any(points.values()):
        widgets.metric_cards([_card(title, points[title]) for title, _ in FIGURES])
        for column, (title, _) in zip(st.columns(3), FIGURES, strict=True):
            if points[title]:
                with column:
                    st.header(title, anchor=False)
                    chart = measured_serving(points[title], title, dark=widgets.is_dark())
                    alt = f"{title}, predicted over measured"
                    widgets.chart(chart, title, f"{name}.{title}", key=f"measured-{title}", alt=alt)
        st.caption(
            f"On the dotted line both are equal; a bar is the 90 % interval.{FITTED if name == EXAMPLE else ''}"
        )
    else:
        st.info("No row has measured figures to stand beside: the table below has the predictions.")
    st.header("Rows", anchor=False)
    saving.table(
        _columns(estimates.rows), f"{name}.beside", key="measured-table", alt="Predicted and measured"
    )
    st.download_button(
        "All columns (CSV)",
        estimates.csv_text,
        "estimated.csv",
        "text/csv",
        on_click="ignore",
        key="measured-csv",
    )
    for place, row in enumerate(estimates.rows, 1):
        if row.reason:
            st.caption(escape_markdown(f"Row {place} is not predicted: {row.reason}"))


def _points(rows: Sequence[EstimatedServing], column: str) -> list[ServingPoint]:
    points = []
    for place, row in enumerate(rows, 1):
        measured = _given(row.cells, f"{column}_mean_ms")
        if row.figures is None or measured is None:
            continue
        figures = {**row.figures.values, **row.figures.intervals}
        predicted, low, high = (figures.get(f"{column}_mean{end}_ms") for end in ("", "_low", "_high"))
        if predicted is not None and low is not None and high is not None:
            label = f"row {place}: {row.cells.get('model', '')} at {row.cells.get('rate_rps', '')} requests/s"
            points.append(ServingPoint(label, measured, predicted, low, high, row.known_rows > 0))
    return points


def _given(cells: Mapping[str, str], name: str) -> float | None:
    """The measured figure of a row: its own, or one that estimate-serving moved."""
    for cell in (cells.get(f"given_{name}"), cells.get(name)):
        try:
            value = float(cell or "")
        except ValueError:
            continue
        if value > 0:
            return value
    return None


def _card(title: str, points: Sequence[ServingPoint]) -> tuple[str, str, str]:
    if not points:
        return title, "n/a", "no row has it measured"
    errors = [abs(point.predicted_ms / point.measured_ms - 1) for point in points]
    inside = sum(point.low_ms <= point.measured_ms <= point.high_ms for point in points)
    note = f"median error; {inside} of {counted(len(points), 'row')} in the 90 % interval"
    return title, percent(statistics.median(errors)), note


def _columns(rows: Sequence[EstimatedServing]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "model": [row.cells.get("model", "") for row in rows],
        "GPU": [row.cells.get("gpu", "") for row in rows],
        "tensor parallel": [row.cells.get("tp") or "1" for row in rows],
        "req/s": [_given(row.cells, "rate_rps") for row in rows],
    }
    for title, column in (("TTFT", "ttft"), ("time per token", "itl"), ("response", "e2e")):
        columns[f"{title}, ms"] = [_figure(row, f"{column}_mean_ms") for row in rows]
        columns[f"{title} measured, ms"] = [_given(row.cells, f"{column}_mean_ms") for row in rows]
    columns["KV blocks"] = [None if row.figures is None else row.figures.kv_blocks for row in rows]
    columns["known rows"] = [row.known_rows for row in rows]
    return columns


def _figure(row: EstimatedServing, name: str) -> float | None:
    value = None if row.figures is None else row.figures.values.get(name)
    return None if value is None else float(f"{value:.4g}")
