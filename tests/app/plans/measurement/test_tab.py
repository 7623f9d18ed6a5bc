"""The tab Run it: why a plan cannot run here, what a run gave, what is drawn while it goes."""

from dataclasses import replace
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.charts.load_run import load_chart
from app.plans.measurement import tab
from tests.support.app.page import put_plan, said
from tests.support.serving.llm_plans import decoder_in, llm_plan
from tests.support.serving.plans import Placed, cpu_plan
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import MEASURE, MeasureParameters, UploadedFile
from torchsplit_core.planning.confidence.formatting import MAX_NAMES
from torchsplit_core.values import TokenFigure
from torchsplit_core.values.plan.front import FrontCosts
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
from app.plans.measurement import tab
from app.session.workspace import read
from app.shell import frame
with frame.fault_boundary():
    workspace = frame.open_page("Plan")
    tab.render(workspace, "cores", read(workspace, "plan_request", "cores"), read(workspace, "plan", "cores"))
"""
PLAN, REQUEST = cpu_plan([Placed("bert")], {"bert": "sample:bert"}, cores=1)
FOUND = Measurement(
    PLAN.request_sha256,
    20.0,
    1.0,
    "a processor, 2 cores",
    (
        MeasuredModel(
            "bert", 20.0, 20.0, 19.5, MeasuredTimes(5.0, 9.0, None), MeasuredTimes(6.0, 14.0, 20.0), 1.2, 3,
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
)  # fmt: skip


def opened(workspace: Workspace) -> AppTest:
    test = AppTest.from_string(SCRIPT, default_timeout=60)
    test.query_params["workspace"] = workspace.id
    test.run()
    assert not test.exception
    return test


@pytest.fixture
def started(workspace, started) -> list[tuple[str, Any]]:
    put_plan(workspace, REQUEST, PLAN, "cores")
    return started


def test_a_plan_of_cores_starts(workspace, started):
    test = opened(workspace)
    assert "predicted, simulated and measured" in said(test)
    test.number_input[0].set_value(0.5)
    test.button("run-start").click().run()
    assert started == [(MEASURE, MeasureParameters("cores", 0.5, 20.0, False))]


def test_slices_that_are_not_here_are_named_and_cores_offered(workspace, started):
    plan, request = cpu_plan([Placed("bert", "3g.40gb")], {"bert": "sample:bert"}, type_="A100-80GB")
    put_plan(workspace, request, plan, "cores")
    test = opened(workspace)
    assert test.button("run-start").disabled and "3g.40gb" in said(test)
    assert "tick the box" in said(test) and "--stand-in" not in said(test)
    test.checkbox[0].check().run()
    test.button("run-start").click().run()
    assert started[0][1].stand_in


def with_source(workspace: Workspace, source: str | None) -> None:
    workspace.put(
        "plan_request", "cores", replace(REQUEST, models=(replace(REQUEST.models[0], source=source),))
    )


@pytest.mark.parametrize(("source", "words"), [
    (None, "Nothing to run for bert: only figures of it are here."),
    ("import:bert", "Nothing to run for bert: only figures of it are here."),
    ("/home/me/net.pt2", "Not in this workspace: bert (file /home/me/net.pt2)."),
])  # fmt: skip
def test_a_model_without_a_file_is_named_and_another_can_run_in_its_place(workspace, started, source, words):
    with_source(workspace, source)
    test = opened(workspace)
    assert test.button("run-start").disabled and words in said(test) and "upload its file" in said(test)
    test.selectbox("run-in-place cores bert").select("sample:ocr").run()
    assert words not in said(test)
    test.button("run-start").click().run()
    assert started[0][1].in_place == {"bert": "sample:ocr"} and not started[0][1].uploads


@pytest.mark.parametrize("file", ["net.py", "net.pt2"])
def test_an_uploaded_model_runs_once_its_content_is_trusted(workspace, started, file):
    source = f"{file}:Net" if file == "net.py" else file
    with_source(workspace, source)
    first = workspace.put_bytes("upload", file, b"first").sha256
    test = opened(workspace)
    assert test.button("run-start").disabled and f"({file}). Tick the box if you trust it" in said(test)
    test.checkbox[0].check().run()
    assert "tick the box" not in said(test)
    # Another content is another file: the box is open again.
    second = workspace.put_bytes("upload", file, b"second").sha256
    test.run()
    assert not test.checkbox[0].value and test.button("run-start").disabled
    test.checkbox[0].check().run()
    test.button("run-start").click().run()
    assert first != second and started[0][1].uploads == {source: UploadedFile(file, second)}


def test_where_nothing_uploaded_is_executed_no_box_helps(workspace, started, monkeypatch):
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    with_source(workspace, "net.pt2")
    workspace.put_bytes("upload", "net.pt2", b"PK")
    test = opened(workspace)
    assert test.checkbox[0].disabled and test.button("run-start").disabled
    assert "executes nothing that was uploaded" in said(test)


def test_nothing_stands_in_for_a_cut_model(workspace, started):
    placed = [Placed("net", stage="a"), Placed("net", start=1, stage="b")]
    plan, request = cpu_plan(placed, {"net": "net.pt2"}, nodes={"net": {"a": ("n0",), "b": ("n1",)}})
    put_plan(workspace, request, plan, "cores")
    test = opened(workspace)
    assert not test.selectbox and "in its place" not in said(test)
    assert "Not in this workspace: net (file net.pt2). Upload its file under Models" in said(test)


def test_what_is_missing_is_said_once_for_all_models(workspace, started):
    """Eleven models of the library on slices that are not here: one warning, three names in it."""
    names = [f"net{number}" for number in range(11)]
    placed = [Placed(name, "1g.10gb", start=number % 7, share=0.5) for number, name in enumerate(names)]
    plan, request = cpu_plan(placed, {name: f"library:{name}" for name in names}, type_="A100-80GB")
    put_plan(workspace, request, plan, "cores")
    (warning,) = opened(workspace).warning
    one, other = warning.value.replace("\\", "").split("\n\n")
    assert one == (
        f"Nothing to run for {', '.join(names[:MAX_NAMES])} and {11 - MAX_NAMES} more: only figures of them are "
        "here. Choose above what runs in their place, or upload their files under Models, measure them there and "
        "plan again."
    )
    assert "1g.10gb" in other and "tick the box" in other


def test_what_a_run_gave(workspace, started, monkeypatch):
    workspace.put("measurement", "cores", FOUND)
    test = opened(workspace)
    row = test.dataframe[0].value.iloc[0]
    assert (row["p95 simulated, ms"], row["p95 measured, ms"], row["errors"]) == ("9", "14", "3")
    assert row["p95 replayed, ms"] == "13"
    assert "its batches take 6 ms" in said(test)
    assert test.dataframe[1].value.iloc[0]["mean batch, simulated"] == "n/a"
    taken = []
    monkeypatch.setattr(tab, "plan_again", lambda workspace, name, request: taken.append(request))
    test.button("run-take-over").click().run()
    (request,) = taken
    assert request.models[0].variants[0].stages[0].points[1].throughput_rps == 640.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("errors", "p95", "limit", "green"),
    [(0, 14.0, 20.0, True), (0, 14.0, None, True), (3, 14.0, None, False), (0, 24.0, 20.0, False)],
)
def test_a_plan_that_met_everything_has_no_amber_box(errors, p95, limit, green, workspace, started):
    model = replace(REQUEST.models[0], max_response_ms=limit)
    workspace.put("plan_request", "cores", replace(REQUEST, models=(model,)))
    one = replace(FOUND.models[0], errors=errors, measured_ms=MeasuredTimes(6.0, p95, 30.0))
    workspace.put("measurement", "cores", replace(FOUND, models=(one,)))
    test = opened(workspace)
    warned = [box.value for box in test.warning if "its batches take 6 ms" in box.value]
    assert bool(warned) is not green and "its batches take 6 ms" in said(test)
    assert any("answered every request" in box.value for box in test.success) is green
    assert test.dataframe[0].value.iloc[0]["the plan carries"] == f"{PLAN.models[0].throughput_rps:g}"


def test_while_this_machine_is_measured_and_planned_the_tab_says_so(workspace, monkeypatch):
    monkeypatch.setattr(jobs, "running", lambda *given: (object(),))
    assert "measured and planned first" in said(opened(workspace))


def test_what_another_ran_for_is_said(workspace, started):
    workspace.put("measurement", "cores", replace(FOUND, points=(), in_place={"bert": "sample:ocr"}))
    assert "sample:ocr ran in place of bert" in said(opened(workspace))


def test_without_a_plan_it_says_what_it_needs(workspace):
    assert "press Plan first" in said(opened(workspace))


def test_the_course_of_a_run():
    moment = {
        "at_s": 0.5, "models": {"bert": {"rate_rps": 19.0, "p95_ms": None}}, "queues": {"bert": {"waiting": [2, 1]}},
    }  # fmt: skip
    (line,) = tab.load_series([{"expected": {"bert": {"rate_rps": 20.0, "p95_ms": 9.0}}}, moment], {})
    assert (line.seconds, line.rate_rps, line.p95_ms, line.queued) == ((0.5,), (19.0,), (None,), (3,))
    figure = load_chart([line], 20.0, dark=False)
    assert [trace.y for trace in figure.data if trace.line.dash == "dash"] == [(20.0, 20.0), (9.0, 9.0)]
    assert tab.load_series([], {}) == []


def test_a_load_that_the_front_does_not_pass_is_said_before_it_is_sent(workspace, started):
    """100 ms a request: 10 a second, of 20 that are demanded."""
    assert "measured before the first run" in said(opened(workspace))
    workspace.put("plan_request", "cores", replace(REQUEST, front=FrontCosts(100.0, host="this one")))
    test = opened(workspace)
    assert "passes about 10 requests/s (measured on this one), and 20 are demanded" in said(test)
    assert not test.button("run-start").disabled and "before the first run" not in said(test)
    test.number_input[0].set_value(0.4).run()
    assert "passes about" not in said(test)


def test_times_to_a_token_of_an_llm_stand_predicted_beside_measured(workspace, started):
    figure = TokenFigure(80.0, p50=20.0, p95=80.0, p99=90.0)
    slower = TokenFigure(120.0, p50=21.0, p95=120.0, p99=130.0)
    chat = MeasuredModel(
        "chat", 2.0, 2.0, 1.9, MeasuredTimes(), MeasuredTimes(300.0, 400.0, 500.0), 1.5, 0, percentile=90.0,
        predicted_ttft_ms=figure, measured_ttft_ms=slower, predicted_tpot_ms=None, measured_tpot_ms=figure,
    )  # fmt: skip
    workspace.put("measurement", "cores", replace(FOUND, models=(*FOUND.models, chat), disagreements=()))
    test = opened(workspace)
    assert [len(table.value) for table in test.dataframe] == [1, 1, 1]
    row = test.dataframe[1].value.iloc[0]
    assert (row["model"], row["percentile"], row["the plan carries"]) == ("chat", "p90", "n/a")
    assert (row["TTFT predicted, ms"], row["TTFT measured, ms"]) == ("80", "120")
    assert (row["TPOT predicted, ms"], row["TPOT measured, ms"]) == ("n/a", "80")
    assert (row["TTFT p50 predicted, ms"], row["TTFT p50 measured, ms"]) == ("20", "21")
    assert list(test.dataframe[0].value["model"]) == ["bert"]
    workspace.put("measurement", "cores", replace(FOUND, models=(chat,), disagreements=()))
    assert [list(table.value["model"]) for table in opened(workspace).dataframe] == [["chat"], ["bert"]]


@pytest.mark.parametrize(
    ("ttft", "tpot", "met"),
    [
        (190.0, 49.0, True),
        (210.0, 49.0, False),
        (190.0, 51.0, False),
        (None, 49.0, False),
        (190.0, None, True),
    ],
)
def test_an_llm_is_met_within_both_of_its_limits(ttft, tpot, met):
    _, request = llm_plan(None)
    figures = (None if value is None else TokenFigure(value) for value in (ttft, tpot))
    measured_ttft, measured_tpot = figures
    chat = MeasuredModel(
        "chat", 2.0, 2.0, 2.0, MeasuredTimes(), MeasuredTimes(), 1.5, 0, percentile=95.0,
        measured_ttft_ms=measured_ttft, measured_tpot_ms=measured_tpot,
    )  # fmt: skip
    assert tab.is_met(replace(FOUND, models=(chat,)), request) is met


def test_a_plan_of_engines_runs_where_their_decoder_is(workspace, started, tmp_path, monkeypatch):
    plan, request = llm_plan(decoder_in(tmp_path), cores=1)
    put_plan(workspace, request, plan, "cores")
    test = opened(workspace)
    assert not test.button("run-start").disabled and not test.warning and "front passes" not in said(test)
    test.button("run-start").click().run()
    assert started == [(MEASURE, MeasureParameters("cores", 1.0, 20.0, False))]
    monkeypatch.setenv("TORCHSPLIT_EXECUTION", "refused")
    assert opened(workspace).button("run-start").disabled


def test_an_llm_without_a_decoder_here_has_nothing_to_run(workspace, started):
    plan, request = llm_plan("hf:meta-llama/Llama-3.1-8B", cores=1)
    put_plan(workspace, request, plan, "cores")
    test = opened(workspace)
    assert test.button("run-start").disabled and not test.selectbox
    assert "Nothing to run for chat: an LLM is served from its folder or config.json" in said(test)
