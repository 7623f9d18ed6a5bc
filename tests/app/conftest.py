"""A store of its own for every test, a filled workspace, and a way to open a page."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.explorer import mount
from app.placements import form
from app.plans import scenario_table
from app.plans.draft import quick_plan
from app.plans.inputs import fleet, models, objective, pairs
from app.plans.presentation import sliders
from app.plans.sweep import response_times
from app.session import draft as drafts
from tests.support.app.field_rows import Rows
from tests.support.app.packages import look_once
from tests.support.app.page import open_page, put_plan, run
from tests.support.app.values import SOURCE, cuts, graph, plan, profile, request
from torchsplit_core import jobs
from torchsplit_core.jobs import runner
from torchsplit_core.pictures.numbers import exact
from torchsplit_core.workspace.store import Store, Workspace


@pytest.fixture(autouse=True, scope="session")
def _packages_looked_through_once() -> None:
    look_once()


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHSPLIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "allowed")
    st.cache_resource.clear()


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch) -> None:
    """What a page finds at once is the best, and moves of one slider are one step, however busy the machine is."""
    for module, name in (
        (quick_plan, "QUICK_S"), (form, "QUICK_S"), (response_times, "BUDGET_S"), (drafts, "ONE_STEP_S"),
        (scenario_table, "MOMENT_S"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 60.0)


@pytest.fixture
def store(_home) -> Store:
    return Store()


@pytest.fixture
def workspace(store) -> Workspace:
    return store.create("review")


@pytest.fixture
def page() -> Callable[..., AppTest]:
    """Open a page on a workspace."""
    return open_page


@pytest.fixture
def filled(workspace) -> Workspace:
    """A workspace in which every step has a result."""
    workspace.put("graph", SOURCE, graph())
    workspace.put("profile", SOURCE, profile())
    workspace.put("partition", f"{SOURCE} in 2", cuts())
    put_plan(workspace, request(), plan())
    workspace.set_setting("scenario", "review")
    return workspace


@pytest.fixture
def started(monkeypatch) -> list[tuple[str, Any]]:
    """The jobs that a page starts, each by its name and parameters; none of them runs."""
    found = []

    def start(workspace, title, name, parameters):
        found.append((name, parameters))
        return "job"

    for door in (jobs, runner):
        monkeypatch.setattr(door, "start", start)
    return found


@pytest.fixture
def native_sliders(rows, monkeypatch) -> None:
    """The sliders of the inputs, and the weight of the first model, as the library's own, so that a test can move them
    without a browser."""
    rows.native = True

    def slider(label, texts, place, *, key, on_move, **_):
        numbers = [float(text.replace("\u202f", "")) for text in texts]
        st.select_slider(
            label, numbers, numbers[place], format_func=exact, key=key,
            on_change=lambda: on_move(numbers.index(st.session_state[key])),
        )  # fmt: skip

    monkeypatch.setattr(sliders, "live_slider", slider)


@pytest.fixture
def rows(monkeypatch) -> Rows:
    """The rows of fields of the Plan page, without the browser's component."""
    found = Rows()
    for table in (fleet, objective, models, pairs):
        monkeypatch.setattr(table, "field_rows", found.draw)
    return found


@pytest.fixture
def mounted(monkeypatch) -> list[dict[str, Any]]:
    """What the page hands to the explorer in each run, with the callbacks."""
    found = []

    def explorer(data, *, key, **callbacks):
        drawing = json.loads(data["text"])
        found.append({"data": {**drawing, **data}, "key": key, **callbacks})

    monkeypatch.setattr(mount, "explorer", explorer)
    return found


@pytest.fixture
def files(monkeypatch) -> dict[str, Any]:
    """What each download button would give, by the file's name."""
    found = {}

    def download_button(label, data, file_name, mime, **_):
        found[file_name] = data
        return False

    monkeypatch.setattr(st, "download_button", download_button)
    return found


@pytest.fixture
def called_back(mounted, monkeypatch) -> Callable[..., dict[str, Any]]:
    """The component calls back in one run of a page; what the next run draws."""

    def call(opened, callback, **state):
        draw = mount.explorer

        def calling(data, *, key, **callbacks):
            st.session_state[key] = state
            callbacks[callback]()

        monkeypatch.setattr(mount, "explorer", calling)
        run(opened)
        monkeypatch.setattr(mount, "explorer", draw)
        run(opened)
        return mounted[-1]["data"]

    return call


@pytest.fixture
def select(monkeypatch) -> Callable[..., dict[str, Any]]:
    """A point of a chart, or a row of a table, is selected by the key of its widget; the session after the callback.

    Streamlit's tests cannot select: the callback is the one that the last run gave the widget.
    """
    callbacks = {}
    for widget in ("plotly_chart", "dataframe"):
        draw = getattr(st, widget)

        def drawing(*args, _draw=draw, **options):
            callbacks[options.get("key", "")] = options.get("on_select")
            return _draw(*args, **options)

        monkeypatch.setattr(st, widget, drawing)

    def selected(key, **selection):
        session = {key: {"selection": selection}}
        with monkeypatch.context() as patched:
            patched.setattr(st, "session_state", session)
            callbacks[key]()
        return session

    return selected
