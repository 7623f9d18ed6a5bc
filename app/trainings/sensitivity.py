"""Around the answer: each choice changed, time against memory, nodes and their price; a background job finds them."""

from __future__ import annotations

from datetime import date
from typing import Any

import streamlit as st

from app.charts.training import LabelledPoint, line_chart
from app.components import saving
from app.session import trainings
from app.session.trainings import StoredTraining
from app.shell import frame, widgets
from app.trainings.strategy_tables import changed_rows
from torchsplit_core.pictures.numbers import counted, percent, short
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.workspace.store import Workspace

PRICE = 2.0
"""US dollars a GPU and hour until the user enters a price: a round number, not an offer."""


def render(workspace: Workspace, training: StoredTraining, outcome: StrategyOutcome) -> None:
    """Draw the sections of a finished study, and the button that starts one."""
    st.header("What if", anchor=False)
    study, under_way = trainings.study_result(workspace, training)
    if study is None:
        _render_start(workspace, training, under_way)
        return
    best = outcome.candidates[0]
    st.write("The best step when one choice is changed and all others are free.")
    saving.table(
        changed_rows(study["changed"], best.seconds_per_step),
        f"{training.name}.what-if",
        key="training-what-if",
        alt="Each choice changed alone",
    )
    _frontier(training, study)
    _scaling(training, study)


def _render_start(workspace: Workspace, training: StoredTraining, under_way: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Look around", key="training-study", disabled=under_way):
            with frame.fault_boundary():
                trainings.start_study(workspace, training)
                st.rerun()
        st.caption(
            "Each choice changed alone, time against memory, and fewer nodes: searched in the background."
        )


def _frontier(training: StoredTraining, study: dict[str, Any]) -> None:
    st.header("Time against memory", anchor=False)
    dots = [
        LabelledPoint(
            entry["memory_gib"]["total"],
            entry["seconds_per_step"],
            f"{short(entry['seconds_per_step'], 's')}, {short(entry['memory_gib']['total'], 'GiB')}<br>"
            f"data {entry['data']}, tensor {entry['tensor']}, pipeline {entry['pipeline']}, "
            f"micro-batch {entry['micro_batch']}, "
            f"{entry['shard']}, recomputation {entry['recompute']}",
            place == 0,
        )
        for place, entry in enumerate(study["frontier"])
    ]
    _chart(dots, "GiB on the fullest device", "s/step", f"{training.name}.frontier", "frontier", shape="vh")
    st.caption(
        f"{counted(len(dots), 'strategy', 'strategies')} that none beats in both; the fastest is marked."
    )


def _scaling(training: StoredTraining, study: dict[str, Any]) -> None:
    st.header("Nodes and price", anchor=False)
    scaled = [entry for entry in study["scaled"] if entry["seconds"] is not None]
    if not scaled:
        st.caption("Nodes are only taken away from a fleet of equal nodes.")
        return
    first = scaled[0]
    left, right = st.columns(2)
    price = left.number_input("Price of a GPU and hour, US$", 0.01, 1000.0, PRICE, key="training-price")
    day = right.date_input("Price as of", date.today(), key="training-price-date")
    per_million = {
        entry["devices"]: price * entry["devices"] / 3600 * 1e6 / entry["samples_per_s"] for entry in scaled
    }
    dots = [
        LabelledPoint(
            entry["devices"],
            entry["samples_per_s"],
            f"{counted(entry['nodes'], 'node')}, {entry['devices']} devices<br>{short(entry['seconds'], 's')} a step, "
            f"{short(entry['samples_per_s'])} sequences/s<br>${short(per_million[entry['devices']])} "
            f"a million sequences",
        )
        for entry in scaled
    ]
    _chart(dots, "devices", "sequences a second", f"{training.name}.nodes", "scaling")
    rows = [
        {
            "nodes": entry["nodes"],
            "devices": entry["devices"],
            "s/step": short(entry["seconds"]),
            "sequences/s": short(entry["samples_per_s"]),
            "of linear": percent(
                entry["samples_per_s"] / first["samples_per_s"] / (entry["devices"] / first["devices"])
            ),
            "US$ a million sequences": short(per_million[entry["devices"]]),
        }
        for entry in scaled
    ]
    saving.table(rows, f"{training.name}.nodes", key="training-nodes", alt="Fewer nodes with the whole batch")
    lacking = [str(entry["devices"]) for entry in study["scaled"] if entry["seconds"] is None]
    note = f" Nothing fits on {', '.join(lacking)} devices." if lacking else ""
    st.caption(
        f"The whole batch on fewer devices, each with its own best strategy; {short(price)} US$ a GPU and hour as of "
        f"{day}, a figure of yours.{note}"
    )


def _chart(
    dots: list[LabelledPoint], x_title: str, y_title: str, file: str, key: str, shape: str = "linear"
) -> None:
    picture = line_chart(dots, x_title, y_title, dark=widgets.is_dark(), shape=shape)
    widgets.chart(picture, y_title, file, key=f"training-{key}", alt=f"{y_title} over {x_title}")
