"""The table of windows and the bars are one state."""

import math

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from app.plans.day import demand_input, window_table
from app.plans.day.demand_input import bars_of, with_values
from app.plans.day.window_table import END, NAME, START
from tests.app.plans.day.test_tab import opened
from tests.support.app.page import field, press
from tests.support.app.values import request
from torchsplit_core.jobs.job_kinds import DAY, RequestParameters


@pytest.fixture
def drawn(monkeypatch):
    """What the bars were given in the last run, and their callbacks, by model."""
    calls = {}

    def bars(label, subject, shown, *, key, on_drawn):
        calls[subject] = (shown, on_drawn)

    monkeypatch.setattr(demand_input, "demand_bars", bars)
    return calls


def draw(page: AppTest, drawn, model: str, values) -> AppTest:
    """A stroke over the bars as the browser reports it: before the page runs again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demand_input.st, "session_state", page.session_state)
        drawn[model][1](values)
    return page.run()


def test_what_is_drawn_is_in_the_table_and_is_planned(filled, started, drawn):
    page = opened(filled)
    shown, _ = drawn["bert"]
    assert [(bar.name, bar.times, bar.hours) for bar in shown] == [
        ("day", "07:00–22:00", 15.0),
        ("night", "22:00–07:00", 9.0),
    ]
    page = draw(page, drawn, "bert", {1: 33.0})
    assert [bar.value for bar in drawn["bert"][0]] == [shown[0].value, 33.0]
    field(page, "selectbox", "Draw the demand of").set_value("ocr")
    page = page.run()
    page = draw(page, drawn, "ocr", {0: 7.0, 1: 0.0})
    press(page, "Plan the day")
    assert started == [(DAY, RequestParameters("review"))]
    bert, ocr = filled.get("plan_request", "review").models
    assert [window.demand_rps for window in bert.demand_windows] == [shown[0].value, 33.0]
    assert [window.demand_rps for window in ocr.demand_windows] == [7.0, 0.0]


def test_what_is_typed_in_the_table_is_drawn(filled, drawn, monkeypatch):
    rows = window_table.rows_of(request())
    rows[0]["bert"] = 12.5
    monkeypatch.setattr(demand_input.st, "data_editor", lambda *_, **__: pd.DataFrame(rows))
    opened(filled)
    assert drawn["bert"][0][0].value == 12.5


def test_rows_without_figures_have_bars_too():
    rows = [
        {NAME: "day", START: "07:00", END: "22:00", "bert": math.nan},
        {NAME: None, START: "25:00", END: None, "bert": "x"},
    ]
    bars = bars_of(rows, "bert")
    assert [(bar.name, bar.hours, bar.value) for bar in bars] == [
        ("day", 15.0, None),
        ("window 2", 1.0, None),
    ]
    assert with_values(rows, "bert", {1: 2.0})[1]["bert"] == 2.0 and "x" in rows[1].values()
