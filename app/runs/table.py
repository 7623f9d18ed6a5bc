"""The runs of a workspace as one table: its rows, its filters and its styles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

import pandas as pd

from app.charts.runs.curves import colour_of
from app.charts.runs.series import block_means
from app.charts.theme import Theme
from app.format.badges import AS_TEXT
from app.runs.status_tables import STATES, recent_speed, source_of
from torchsplit_core.pictures.numbers import memory_size
from torchsplit_core.strategy.search.descriptions import describe_choices
from torchsplit_core.training.monitor import RunView

SPARK_POINTS = 40
COLOUR, CURVE = "colour", "loss, all steps"
"""The columns that only the page shows: no file has them."""


def table_row(name: str, view: RunView | None, tags: Sequence[str]) -> dict[str, Any]:
    """A run's row; a run that has not begun, or whose folder is damaged, has only its name and tags."""
    cells: dict[str, Any] = dict.fromkeys(COLUMNS)
    cells |= {"run": name, "state": NOT_THERE, "tags": list(tags), CURVE: []}
    if view is None:
        return cells
    rate, step_s = recent_speed(view)
    launch = view.launch
    times = [line.reported_at for line in view.ranks] + [line.time for line in view.events[-1:]]
    return cells | {
        "state": STATES[view.state][0],
        "model": source_of(view),
        "strategy": describe_choices(launch.strategy.choices) if launch else None,
        "step": view.last_step,
        "of": view.target_steps,
        "loss": view.steps.loss[-1] if len(view.steps) and isfinite(view.steps.loss[-1]) else None,
        CURVE: [loss for loss in block_means(view.steps.loss, SPARK_POINTS) if isfinite(loss)],
        "samples/s": rate,
        "steps/s": 1 / step_s if step_s else None,
        "last measured": min(max(times), datetime.now(UTC)) if times else None,
        "started": view.events[0].time if view.events else None,
        "processes": view.steps.world_size[-1] if len(view.steps) else None,
        "peak memory of a rank": memory_size(max((line.peak_bytes for line in view.ranks), default=None)),
        "lost ranks": sum(line.kind == "rank_lost" for line in view.events),
    }


COLUMNS = (
    "run", "state", "model", "strategy", "step", "of", "loss", CURVE, "samples/s", "steps/s", "last measured",
    "started", "tags", "processes", "peak memory of a rank", "lost ranks",
)  # fmt: skip
NOT_THERE = "not begun, or damaged"
"""Its own page says which."""


def filter_rows(
    rows: Iterable[Mapping[str, Any]], text: str, states: Sequence[str], tags: Sequence[str]
) -> list[Mapping[str, Any]]:
    """The rows that have the text in a name, one of the states, and all of the tags; an empty filter passes all."""
    sought = text.strip().casefold()
    return [
        line
        for line in rows
        if any(sought in str(line[column] or "").casefold() for column in ("run", "model", "strategy"))
        and (not states or line["state"] in states)
        and set(tags) <= set(line["tags"])
    ]


def build_frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a frame with an empty column for the colour; numbers stay numbers, so that they sort."""
    data = pd.DataFrame([{COLOUR: "", **line} for line in rows], columns=[COLOUR, *COLUMNS])
    for column in ("step", "of", "processes", "lost ranks"):
        data[column] = data[column].astype("Int64")
    for column in ("loss", "samples/s", "steps/s"):
        data[column] = data[column].astype("Float64")
    for column in ("last measured", "started"):
        data[column] = pd.to_datetime(data[column], utc=True)
    return data


def style_frame(data: pd.DataFrame, places: Mapping[str, int], theme: Theme) -> Any:
    """The table in the colours of the runs, by their places, and of the states."""
    colours = dict(STATES.values())
    return data.style.apply(
        lambda column: [f"background-color: {colour_of(places[name])}" for name in data["run"]],
        subset=[COLOUR],
    ).map(lambda state: f"color: {AS_TEXT[theme][colours.get(state, 'gray')]}", subset=["state"])


def export_frame(data: pd.DataFrame) -> pd.DataFrame:
    """The table as a file has it: without colour and curve, the tags in a line."""
    return data.drop(columns=[COLOUR, CURVE]).assign(tags=data["tags"].map(", ".join))
