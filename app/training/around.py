"""Around the answer: each choice changed, time against memory, nodes and their price; found in the background."""

from __future__ import annotations

from datetime import date
from typing import Any

import streamlit as st

from app.charts.theme import CONFIG
from app.charts.training import Point, points
from app.components import saving
from app.session import trainings
from app.session.trainings import Kept
from app.shell import frame
from app.training.words import changed_rows
from torchsplit_core.pictures.numbers import counted, percent, short
from torchsplit_core.values.strategy.outcome import StrategyOutcome
from torchsplit_core.workspace.store import Workspace

PRICE = 2.0
"""US dollars a GPU and hour before anyone says one: a round number, not an offer."""


def show(workspace: Workspace, kept: Kept, outcome: StrategyOutcome) -> None:
    """The sections once they were asked for, and the way to ask."""
    st.header("What if", anchor=False)
    found, under_way = trainings.studied(workspace, kept)
    if found is None:
        _ask(workspace, kept, under_way)
        return
    best = outcome.candidates[0]
    st.write("The best step when one choice is changed and all others are free.")
    saving.table(
        changed_rows(found["changed"], best.seconds_per_step),
        f"{kept.name}.what-if",
        key="training-what-if",
        alt="Each choice changed alone",
    )
    _frontier(kept, found)
    _scaling(kept, found)


def _ask(workspace: Workspace, kept: Kept, under_way: bool) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Look around", key="training-study", disabled=under_way):
            with frame.telling():
                trainings.start_study(workspace, kept)
                st.rerun()
        st.caption(
            "Each choice changed alone, time against memory, and fewer nodes: searched in the background."
        )


def _frontier(kept: Kept, found: dict[str, Any]) -> None:
    st.header("Time against memory", anchor=False)
    of = [
        Point(
            one["memory_gib"]["total"],
            one["seconds_per_step"],
            f"{short(one['seconds_per_step'], 's')}, {short(one['memory_gib']['total'], 'GiB')}<br>"
            f"data {one['data']}, tensor {one['tensor']}, pipeline {one['pipeline']}, "
            f"micro-batch {one['micro_batch']}, "
            f"{one['shard']}, recomputation {one['recompute']}",
            place == 0,
        )
        for place, one in enumerate(found["frontier"])
    ]
    _chart(of, "GiB on the fullest device", "s a step", f"{kept.name}.frontier", "frontier", shape="vh")
    st.caption(
        f"{counted(len(of), 'strategy', 'strategies')} that none beats in both; the fastest is marked."
    )


def _scaling(kept: Kept, found: dict[str, Any]) -> None:
    st.header("Nodes and price", anchor=False)
    scaled = [one for one in found["scaled"] if one["seconds"] is not None]
    if not scaled:
        st.caption("Nodes are only taken away from a fleet of equal nodes.")
        return
    first = scaled[0]
    left, right = st.columns(2)
    price = left.number_input("Price of a GPU and hour, US$", 0.01, 1000.0, PRICE, key="training-price")
    day = right.date_input("Price as of", date.today(), key="training-price-date")
    per_million = {
        one["devices"]: price * one["devices"] / 3600 * 1e6 / one["samples_per_s"] for one in scaled
    }
    of = [
        Point(
            one["devices"],
            one["samples_per_s"],
            f"{counted(one['nodes'], 'node')}, {one['devices']} devices<br>{short(one['seconds'], 's')} a step, "
            f"{short(one['samples_per_s'])} sequences/s<br>${short(per_million[one['devices']])} a million sequences",
        )
        for one in scaled
    ]
    _chart(of, "devices", "sequences a second", f"{kept.name}.nodes", "scaling")
    rows = [
        {
            "nodes": one["nodes"],
            "devices": one["devices"],
            "s a step": short(one["seconds"]),
            "sequences/s": short(one["samples_per_s"]),
            "of linear": percent(
                one["samples_per_s"] / first["samples_per_s"] / (one["devices"] / first["devices"])
            ),
            "US$ a million sequences": short(per_million[one["devices"]]),
        }
        for one in scaled
    ]
    saving.table(rows, f"{kept.name}.nodes", key="training-nodes", alt="Fewer nodes with the whole batch")
    lacking = [str(one["devices"]) for one in found["scaled"] if one["seconds"] is None]
    said = f" Nothing fits on {', '.join(lacking)} devices." if lacking else ""
    st.caption(
        f"The whole batch on fewer devices, each with its own best strategy; {short(price)} US$ a GPU and hour as of "
        f"{day}, a figure of yours.{said}"
    )


def _chart(of: list[Point], across: str, up: str, file: str, key: str, shape: str = "linear") -> None:
    with saving.saved(up, file, key=f"training-{key}"):
        st.plotly_chart(
            points(of, across, up, dark=st.context.theme.type == "dark", shape=shape),
            theme=None,
            key=f"training-{key}",
            config=CONFIG,
            alt=f"{up} over {across}",
        )
