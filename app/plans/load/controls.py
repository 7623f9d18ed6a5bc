"""The controls of the tab Under load: arrivals, a trace, limits, the slider of the load."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from app.components.live_slider import live_slider
from app.plans.load.settings import KINDS, LOADS, Bursts, Kind, LoadSettings, Trace, kinds_of
from torchsplit_core.pictures.numbers import THIN, counted, escape_markdown, exact
from torchsplit_core.tables.arrival_times import arrival_times
from torchsplit_core.values import PlanRequest
from torchsplit_core.values.limits import LARGEST_MAGNITUDE
from torchsplit_core.workspace.store import Workspace

PLAIN: Mapping[Kind, str] = {
    "planned": "The arrivals that the plan was made for; models without any of their own are Poisson at the demand.",
    "poisson": "Every model at its demand, independent of the others.",
    "deterministic": "Every model at its demand, in equal intervals: the easiest case.",
}
"""The text about arrivals without settings."""
COLUMNS = 4
"""Limits in a row."""


def render_controls(workspace: Workspace, name: str, request: PlanRequest) -> LoadSettings:
    """The settings of the controls. Raises InputFault for a file that is no trace."""
    left, right = st.columns(2)
    with left:
        kind: Kind = st.selectbox(
            "Requests arrive", kinds_of(request), format_func=KINDS.__getitem__, key=f"load-kind {name}",
            persist_state="session",
        )  # fmt: skip
    cv, bursts, trace = 2.0, Bursts(), None
    with right:
        if kind == "gamma":
            cv = st.number_input(
                "Unevenness (cv)", 0.05, 20.0, cv, 0.25, key=f"load-cv {name}", persist_state="session",
                help="Standard deviation over mean of the times between requests: 1 is Poisson, above it bursts.",
            )  # fmt: skip
        elif kind == "bursts":
            bursts = _bursts(name)
        elif kind == "trace":
            trace = _trace(workspace, name)
        else:
            st.caption(PLAIN[kind])
    limits = _limits(name, request)
    return LoadSettings(kind, cv, bursts, trace, _load(name), limits)


def _bursts(name: str) -> Bursts:
    first = Bursts()
    places = st.columns(3)
    times = places[0].number_input(
        "Burst, × demand", 1.01, 1000.0, first.times, 0.5, key=f"load-burst {name}", persist_state="session"
    )
    busy = places[1].number_input(
        f"for,{THIN}s", 0.01, 1e6, first.busy_s, 1.0, key=f"load-busy {name}", persist_state="session"
    )
    calm = places[2].number_input(
        f"then calm for,{THIN}s", 0.01, 1e6, first.calm_s, 1.0, key=f"load-calm {name}",
        persist_state="session", help="Each on average: bursts and calm take turns at random.",
    )  # fmt: skip
    bursts = Bursts(times, busy, calm)
    st.caption(
        f"Between bursts {exact(round(bursts.calm_times, 3))} × the demand: on average it is the demand."
    )
    return bursts


def _trace(workspace: Workspace, name: str) -> Trace | None:
    """The trace that was dropped last; None before the first."""
    key = f"load trace {workspace.id} {name}"
    file = st.file_uploader(
        "Drop a table of arrivals (CSV)", type=["csv"], key=f"load-file {name}",
        help="Seconds in a column time_s, or dates in timestamp; with a column model each model takes its own rows.",
    )  # fmt: skip
    if file is not None:
        st.session_state[key] = Trace(file.name, _times(file.getvalue(), file.name))
    trace: Trace | None = st.session_state.get(key)
    if trace is None:
        st.caption("Until you drop one, arrivals are Poisson.")
        return None
    count = sum(len(times) for times in trace.times_s.values())
    named = sorted(model for model in trace.times_s if model is not None)
    whose = f" of {', '.join(named)}" if named else ", the same for every model"
    st.caption(escape_markdown(f"{trace.file}: {counted(count, 'arrival')}{whose}."))
    return trace


@st.cache_data(max_entries=4, show_spinner="Reading the trace")
def _times(data: bytes, origin: str) -> dict[str | None, tuple[float, ...]]:
    return arrival_times(data, origin)


def _limits(name: str, request: PlanRequest) -> dict[str, float]:
    """The limit of the response time by model, as typed here, else the request's."""
    limits = {}
    with st.expander("Limits of the response time"):
        st.caption(
            "How long a request may take, waits included. These start as the scenario's: the limit of the response, "
            "else that of the service time of one batch. Empty: no limit. What you enter here changes no plan."
        )
        for number, model in enumerate(request.models):
            if number % COLUMNS == 0:
                columns = st.columns(COLUMNS)
            value = columns[number % COLUMNS].number_input(
                f"{escape_markdown(model.name)},{THIN}ms", 0.001, LARGEST_MAGNITUDE, model.response_limit_ms,
                format="%.6g", placeholder="no limit",
                key=f"load-limit {name} {model.name} {model.response_limit_ms}",
                persist_state="session",
            )  # fmt: skip
            if value is not None:
                limits[model.name] = value
    return limits


def _load(name: str) -> float:
    """The slider of the load; its factor."""
    key = f"load of {name}"
    stands = st.session_state.get(key, 1.0)
    texts = [f"×{THIN}{load:g}" for load in LOADS]

    def moved(place: int) -> None:
        st.session_state[key] = LOADS[place]

    place = LOADS.index(stands)
    live_slider("Load, times the demand", texts, place, key=f"load-slider {name}", on_move=moved)
    return float(stands)
