"""The tab Run it: why a plan cannot run here, what a run gave, what is drawn while it goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.run import courses
from app.plan.run import tab
from tests.support.app.graphs import said
from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import jobs
from torchsplit_core.jobs.names import MEASURE, MeasureParameters
from torchsplit_core.values.serving.measurement import (
    Disagreement,
    MeasuredModel,
    MeasuredPoint,
    MeasuredServer,
    MeasuredTimes,
    Measurement,
)
from torchsplit_core.workspace.store import Workspace

SCRIPT = """
from app.plan.run import tab
from app.session.workspace import read
from app.shell import frame
with frame.telling():
    workspace = frame.open_page("Plan")
    tab.show(workspace, "cores", read(workspace, "plan_request", "cores"), read(workspace, "plan", "cores"))
"""
PLAN, REQUEST = cpu_plan([Placed("bert")], {"bert": "sample:bert"}, cores=1)
FOUND = Measurement(
    PLAN.request_sha256,
    20.0,
    1.0,
    "a processor, 2 cores",
    (
        MeasuredModel(
            "bert",
            20.0,
            20.0,
            19.5,
            MeasuredTimes(5.0, 9.0, None),
            MeasuredTimes(6.0, 14.0, 20.0),
            1.2,
            3,
            replayed_ms=MeasuredTimes(6.0, 13.0, 19.0),
        ),
    ),
    (MeasuredServer("host0/1c@0", "bert", "whole", 5.0, 6.0, 0.1, 0.12, None, 1.5, 2.0),),
    (MeasuredPoint("bert", "whole", "whole", "CPU", "1c", 4, 1, 640.0, 7.0, 600.0, 650.0, 50),),
    (
        Disagreement(
            "bert", "service", "bert on host0/1c@0, stage whole: its batches take 6 ms", "host0/1c@0", "whole"
        ),
    ),
)


def opened(workspace: Workspace) -> AppTest:
    test = AppTest.from_string(SCRIPT, default_timeout=60)
    test.query_params["workspace"] = workspace.id
    test.run()
    assert not test.exception
    return test


@pytest.fixture
def started(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, MeasureParameters]]:
    found: list[tuple[str, MeasureParameters]] = []
    monkeypatch.setattr(
        jobs, "start", lambda w, title, name, parameters: found.append((name, parameters)) or "j"
    )
    workspace.put("plan_request", "cores", REQUEST)
    workspace.put("plan", "cores", PLAN)
    return found


def test_a_plan_of_cores_starts(workspace: Workspace, started: list[tuple[str, MeasureParameters]]) -> None:
    test = opened(workspace)
    assert "measured beside predicted and simulated" in said(test)
    test.number_input[0].set_value(0.5)
    test.button("run-start").click().run()
    assert started == [(MEASURE, MeasureParameters("cores", 0.5, 20.0, False))]


def test_slices_that_are_not_here_are_named_and_cores_offered(
    workspace: Workspace, started: list[tuple[str, MeasureParameters]]
) -> None:
    plan, request = cpu_plan([Placed("bert", "3g.40gb")], {"bert": "sample:bert"}, type_="A100-80GB")
    workspace.put("plan_request", "cores", request)
    workspace.put("plan", "cores", plan)
    test = opened(workspace)
    assert test.button("run-start").disabled and "3g.40gb" in said(test)
    assert "tick the box" in said(test) and "--stand-in" not in said(test)
    test.checkbox[0].check().run()
    test.button("run-start").click().run()
    assert started[0][1].stand_in


def test_a_model_without_a_source_is_named(
    workspace: Workspace, started: list[tuple[str, MeasureParameters]]
) -> None:
    workspace.put(
        "plan_request", "cores", replace(REQUEST, models=(replace(REQUEST.models[0], source=None),))
    )
    test = opened(workspace)
    assert test.button("run-start").disabled and not test.checkbox
    assert "can be run nowhere" in said(test) and "What is missing: bert: source." in said(test)


def test_what_a_run_gave(
    workspace: Workspace, started: list[tuple[str, MeasureParameters]], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.put("measurement", "cores", FOUND)
    test = opened(workspace)
    row = test.dataframe[0].value.iloc[0]
    assert (row["p95 simulated, ms"], row["p95 measured, ms"], row["errors"]) == ("9", "14", "3")
    assert row["p95 replayed, ms"] == "13"
    assert "its batches take 6 ms" in said(test)
    assert test.dataframe[1].value.iloc[0]["mean batch, simulated"] == "n/a"
    taken: list[object] = []
    monkeypatch.setattr(tab, "plan_again", lambda workspace, name, request: taken.append(request))
    test.button("run-take-over").click().run()
    (request,) = taken
    assert request.models[0].variants[0].stages[0].points[1].throughput_rps == 640.0  # type: ignore[attr-defined]


def test_without_a_plan_it_says_what_it_needs(workspace: Workspace) -> None:
    assert "press Plan first" in said(opened(workspace))


def test_the_course_of_a_run() -> None:
    moment = {
        "at_s": 0.5, "models": {"bert": {"rate_rps": 19.0, "p95_ms": None}}, "queues": {"bert": {"waiting": [2, 1]}},
    }  # fmt: skip
    (line,) = tab.course_lines([{"expected": {"bert": {"rate_rps": 20.0, "p95_ms": 9.0}}}, moment], {})
    assert (line.seconds, line.rate_rps, line.p95_ms, line.waiting) == ((0.5,), (19.0,), (None,), (3,))
    figure = courses([line], 20.0, dark=False)
    assert [trace.y for trace in figure.data if trace.line.dash == "dash"] == [(20.0, 20.0), (9.0, 9.0)]
    assert tab.course_lines([], {}) == []
