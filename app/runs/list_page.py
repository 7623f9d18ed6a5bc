"""The runs of a workspace: one table, those chosen in one picture, and links to their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from app.charts.runs.curves import colour_of, curves
from app.charts.theme import theme_name
from app.components import saving
from app.runs import comparison, new_form, table
from app.runs.curves import TIME, UNITS, curve, notes, render_controls
from app.runs.status_tables import STATES
from app.session import runs
from app.session.result_kind import RUN
from app.shell import navigation, tags, widgets
from torchsplit_core import jobs
from torchsplit_core.pictures.numbers import UNKNOWN, escape_markdown
from torchsplit_core.training.monitor import RunView
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

INTRODUCTION = (
    "Here you will see models being trained on this machine: loss and rate as the steps come, memory and time of every "
    "rank, what happened to them, and the checkpoints that a run goes on from."
)
REFRESH_S = 2.0
FIRST = 3
"""How many runs the picture shows before the user chooses."""
CHOSEN = "runs-chosen"
"""The session's key of the names of the runs that are drawn."""
TURN = "runs-turn"
"""The session's key of how often runs were chosen below the table."""
OPENED_RUN = "runs-left-for"
"""The session's key of the run that was opened from here last."""
ROW_PX, EDGE_PX, MOST_ROWS = 35, 14, 12
"""The height of a row and of the scroll bar; beyond MOST_ROWS rows the table scrolls."""
PICTURE_PX = 380
MOST_LINKS = 4
"""How many chosen runs get a link to their page beside the choice."""


def render(workspace: Workspace) -> None:
    """Draw the page."""
    known = RUN.names(workspace)
    if not known:
        st.write(INTRODUCTION)
    else:
        going = any((view := _view(workspace, name)) is not None and view.alive for name in known)
        refreshed = REFRESH_S if going or jobs.running(workspace, RUN.job_kinds) else None
        st.fragment(_runs, run_every=refreshed)(workspace, known)
        st.header("New run", anchor=False)
    new_form.render(workspace, first=not known)


def _view(workspace: Workspace, name: str) -> RunView | None:
    try:
        return runs.view(workspace, name)
    except InputFault:
        # The run's page says what is wrong with it.
        return None


def _runs(workspace: Workspace, known: tuple[str, ...]) -> None:
    views = {name: _view(workspace, name) for name in known}
    given = RUN.tags(workspace)
    rows = [table.table_row(name, view, given.get(name, ())) for name, view in views.items()]
    # Sorted by age: a run keeps its colour when others are added.
    places = {name: place for place, name in enumerate(reversed(known))}
    shown = _render_filter(rows, given)
    if not shown:
        st.caption("No run is like that.")
        return
    chosen = _table(workspace, shown, places, views)
    _render_selection([str(row["run"]) for row in shown], chosen)
    chosen_views = {name: view for name in chosen if (view := views[name]) is not None}
    _render_picture(chosen_views, places)
    if len(known) > 1:
        _render_two(chosen_views, places)


def _render_filter(
    rows: Sequence[Mapping[str, Any]], given: Mapping[str, Sequence[str]]
) -> list[Mapping[str, Any]]:
    """Draw the filters above the table; return the rows that pass them."""
    text, states, tagged = st.columns(3)
    with text:
        sought = st.text_input("Find", key="runs-find", placeholder="Name, model or strategy")
    with states:
        known = list(dict.fromkeys((*(words for words, _ in STATES.values()), table.NOT_THERE)))
        state = st.multiselect("In the states", known, key="runs-states", placeholder="Any")
    with tagged:
        tag = tags.render_filter(given, key="runs-tags")
    return table.filter_rows(rows, sought, state, tag)


def _table(
    workspace: Workspace,
    rows: Sequence[Mapping[str, Any]],
    places: Mapping[str, int],
    views: Mapping[str, RunView | None],
) -> list[str]:
    """Draw the table; return the names of the runs that the user selected in it."""
    names = [str(row["run"]) for row in rows]
    drawable = [name for name in names if (view := views[name]) is not None and len(view.steps)]
    before = st.session_state.setdefault(CHOSEN, drawable[:FIRST])
    made = table.build_frame(rows)
    config = st.column_config
    # Streamlit stores a selection as row numbers: other rows, or a choice made below, need a table under a new key.
    key = f"runs-table {hash(tuple(names))} {st.session_state.get(TURN, 0)}"
    event = st.dataframe(
        table.style_frame(made, places, theme_name(widgets.is_dark())), hide_index=True,
        placeholder=UNKNOWN,
        alt="Training runs: select those to draw", key=key, on_select="rerun", selection_mode="multi-row",
        selection_default={"selection": {"rows": [names.index(name) for name in before if name in names]}},
        height=(min(len(rows), MOST_ROWS) + 1) * ROW_PX + EDGE_PX,
        column_config={
            table.COLOUR: config.TextColumn(width=60, help="Of its line in the picture"),
            "run": config.ButtonColumn(
                "run", type="tertiary", alignment="left", key="runs-open", width=120, help="Opens its page"
            ),
            "model": config.TextColumn(width=120), "strategy": config.TextColumn(width=150),
            "step": config.NumberColumn(format="%d", width=60), "of": config.NumberColumn(format="%d", width=60),
            "loss": config.NumberColumn(format="%.4g", width=70),
            table.CURVE: config.LineChartColumn(width=110, help="Of all its steps, from the first to the last"),
            "samples/s": config.NumberColumn(format="%.4g", help="Of the last steps, all ranks together"),
            "steps/s": config.NumberColumn(format="%.4g", help="Of the last steps"),
            "last measured": config.DatetimeColumn(format="distance", help="When a rank told of itself last"),
            "started": config.DatetimeColumn("started (UTC)", format="YYYY-MM-DD HH:mm", timezone="UTC"),
            "tags": config.ListColumn(help="Given on the page of the run"),
        },
    )  # fmt: skip
    saving.csv_button(table.export_frame(made), "runs", key="runs-table", alt="Training runs")
    if (click := st.session_state.get("runs-open")) is not None:
        st.session_state[OPENED_RUN] = names[click["row"]]
        navigation.go("Run", names[click["row"]])
    chosen = [names[place] for place in event["selection"]["rows"] if place < len(names)]
    # A chosen run that the filters hide stays chosen.
    st.session_state[CHOSEN] = [name for name in before if name not in names] + chosen
    return chosen


def _render_selection(names: Sequence[str], chosen: Sequence[str]) -> None:
    """Draw the same choice for the keyboard, and links to the pages of the chosen runs."""

    def pick() -> None:
        hidden = [name for name in st.session_state[CHOSEN] if name not in names]
        st.session_state[CHOSEN] = hidden + st.session_state["runs-picked"]
        st.session_state[TURN] = st.session_state.get(TURN, 0) + 1

    st.session_state["runs-picked"] = list(chosen)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.multiselect("Drawn", names, key="runs-picked", on_change=pick, placeholder="Choose runs")
        for name in chosen[:MOST_LINKS]:
            navigation.link("Run", escape_markdown(name), name, icon=":material/monitoring:")


def _render_two(views: Mapping[str, RunView], places: Mapping[str, int]) -> None:
    """Show two of the chosen runs side by side, figure by figure."""
    st.header("Side by side", anchor=False)
    if len(views) < 2:
        st.caption("Choose two runs to see their strategies, losses, speeds and memory side by side.")
        return
    names = list(views)
    if len(names) > 2:
        with st.container(horizontal=True):
            first = st.selectbox("Run", names, key="runs-first", width=220)
            others = [name for name in names if name != first]
            second = st.selectbox("Beside", others, key="runs-second", width=220)
            names = [first, second]
    rows = comparison.compare(*(views[name] for name in names))
    st.html(comparison.comparison_html(names, [colour_of(places[name]) for name in names], rows))
    st.caption(
        "The loss is that of the last step that both have done; the difference, of the second run from the first."
    )
    saving.csv_button(
        comparison.comparison_frame(names, rows),
        f"{names[0]}-{names[1]}",
        key="runs-two",
        alt="Two runs side by side",
    )


def _render_picture(views: Mapping[str, RunView], places: Mapping[str, int]) -> None:
    """Draw the chosen runs in one picture."""
    drawn = {name: view for name, view in views.items() if len(view.steps)}
    settings = render_controls("runs", figures=tuple(UNITS))
    if not drawn:
        st.caption(
            "Select runs in the table, by the boxes at its left, to see them in one picture here."
            if not views
            else "None of the chosen runs has done a step yet."
        )
        return
    along = "time" if settings.along == TIME else "steps"
    figure = curves(
        [curve(name, places[name], view, settings) for name, view in drawn.items()], settings.figure,
        UNITS[settings.figure], dark=widgets.is_dark(), along=settings.along, logarithmic=settings.logarithmic,
        height_px=PICTURE_PX,
    )  # fmt: skip
    widgets.chart(
        figure, settings.figure, f"runs.{settings.figure.replace('/', '-')}", key="runs-picture",
        alt=f"{settings.figure} of the chosen runs along the {along}",
    )  # fmt: skip
    if left_out := notes(drawn, settings):
        st.caption(escape_markdown(left_out))
