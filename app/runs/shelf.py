"""The runs of a workspace: as a list, several side by side, and the ways to more."""

from __future__ import annotations

import streamlit as st

from app.charts.runs.curves import MOST_POINTS, RATE_POINTS, Curve, curves, rates, thinned
from app.charts.theme import CONFIG
from app.components import saving
from app.format.numbers import plain
from app.runs import new
from app.runs.words import comparison, stands
from app.session import runs
from app.session.thing import RUN
from app.shell import navigation, widgets
from torchsplit_core import jobs
from torchsplit_core.running.watch import RunView
from torchsplit_core.values import InputFault
from torchsplit_core.workspace.store import Workspace

INTRODUCTION = (
    "Here you will see models being trained on this machine: loss and rate as the steps come, memory and time of every "
    "rank, what happened to them, and the checkpoints that a run goes on from."
)
REFRESH_S = 2.0
FIRST = 3
"""Runs side by side before anyone chooses."""


def show(workspace: Workspace) -> None:
    """The whole page."""
    known = RUN.known(workspace)
    if not known:
        st.write(INTRODUCTION)
    else:
        going = [name for name in known if (view := _view(workspace, name)) is not None and view.alive]
        st.fragment(_runs, run_every=REFRESH_S if going or _any_working(workspace) else None)(
            workspace, known
        )
        st.header("New run", anchor=False)
    new.show(workspace, first=not known)


def _any_working(workspace: Workspace) -> bool:
    return bool(jobs.running(workspace, RUN.work))


def _runs(workspace: Workspace, known: tuple[str, ...]) -> None:
    views = {name: _view(workspace, name) for name in known}
    for name, view in views.items():
        with st.container(border=True, key=f"run-{name}", gap="xsmall"):
            navigation.link("Run", plain(name), name, icon=":material/monitoring:")
            st.caption(plain("it starts, or its folder is damaged" if view is None else stands(view)))
    _beside({name: view for name, view in views.items() if view is not None and len(view.steps)})


def _view(workspace: Workspace, name: str) -> RunView | None:
    try:
        return runs.view(workspace, name)
    except InputFault:
        # Its own page says what is the matter.
        return None


def _beside(views: dict[str, RunView]) -> None:
    """Those chosen, in one picture of each figure and one table."""
    if len(views) < 2:
        return
    st.header("Side by side", anchor=False)
    names = widgets.many("Runs", tuple(views), tuple(views)[:FIRST], "runs-beside", most_new=FIRST)
    if not names:
        return
    dark = st.context.theme.type == "dark"
    chosen = {name: views[name] for name in names}
    left, right = st.columns(2)
    for column, title, unit in ((left, "loss", ""), (right, "samples/s", "samples/s")):
        of = [
            Curve(
                name,
                thinned(view.steps.step, RATE_POINTS if unit else MOST_POINTS),
                rates(view.steps.samples, view.steps.step_s, RATE_POINTS)
                if unit
                else thinned(view.steps.loss),
            )
            for name, view in chosen.items()
        ]
        with column, saving.saved(title, f"runs.{title.replace('/', '-')}", key=f"runs-{unit or title}"):
            st.plotly_chart(
                curves(of, title, unit, dark=dark), theme=None, key=f"runs-chart-{title}", config=CONFIG,
                alt=f"{title} of the chosen runs over their steps",
            )  # fmt: skip
    saving.table(
        [comparison(name, view) for name, view in chosen.items()],
        "runs",
        key="runs-table",
        alt="Runs side by side",
    )
