"""The day under the trace: a dropped trace starts the job, which stores what the tab and the report show."""

from dataclasses import replace

import pytest

from app.charts.day import ResponseLine, p95_by_hour
from app.plans.day import tab, under_trace
from app.plans.report import report
from tests.app.plans.day.test_tab import fewest, opened
from tests.support.app.page import field, press, said
from tests.support.app.values import plan
from torchsplit_core.jobs.job_kinds import (
    DAY_REPLAY,
    DayReplayParameters,
    RequestParameters,
    from_stored,
    to_stored,
)
from torchsplit_core.jobs.plan import day_job, day_replay_job
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.values import ignore_progress

RATES = tuple(0.3 if 7 <= hour < 22 else 0.1 for hour in range(24))


class Dropped:
    """An uploaded trace of two days; the second has a hole."""

    name, size, file_id = "trace.csv", 100, "1"

    def getvalue(self) -> bytes:
        rows = ["time_s,bert,ocr", *(f"{3600 * hour},{RATES[hour % 24]},0.2" for hour in range(47))]
        return "\n".join([*rows, f"{3600 * 47},,0.2"]).encode()


@pytest.fixture
def planned(filled):
    filled.put("plan_request", "review", fewest())
    day_job(filled, RequestParameters("review"), ignore_progress)
    return filled


@pytest.fixture
def replayed(planned):
    asked = DayReplayParameters("review", 0, 3600, {"bert": RATES, "ocr": (0.2,) * 24}, 0.5)
    assert day_replay_job(planned, asked, ignore_progress) == {"day_replay": "review", "sides": 3}
    return planned


def test_without_a_trace_the_section_says_what_to_do(planned):
    page = opened(planned)
    assert "Drop a trace above" in said(page) and not any(b.label == "Simulate the day" for b in page.button)


def test_a_press_starts_the_job_with_the_chosen_day_and_target(planned, started, monkeypatch):
    monkeypatch.setattr(tab.trace_input.st, "file_uploader", lambda *_, **__: Dropped())
    page = opened(planned)
    field(page, "number_input", "Day of the trace").set_value(2)
    field(page, "number_input", "Target of the rule, %").set_value(55)
    press(page.run(), "Simulate the day")
    bert = (*RATES[:23], None)
    asked = DayReplayParameters("review", 0, 3600, {"bert": bert, "ocr": (0.2,) * 24}, 0.55)
    assert started == [(DAY_REPLAY, asked)]
    assert from_stored(DAY_REPLAY, to_stored(DAY_REPLAY, asked)) == asked


def test_a_model_without_a_column_starts_nothing_and_is_named(planned, started, monkeypatch):
    dropped = Dropped()
    rows = ["time_s,bert", *(f"{3600 * hour},1" for hour in range(24))]
    dropped.getvalue = lambda: "\n".join(rows).encode()
    monkeypatch.setattr(tab.trace_input.st, "file_uploader", lambda *_, **__: dropped)
    page = press(opened(planned), "Simulate the day")
    assert "no column of the model" in said(page) and "ocr" in said(page) and started == []


def test_what_was_simulated_is_shown_with_its_basis(replayed):
    replay = replayed.get("day_replay", "review")
    assert replay.request_sha256 == request_hash(fewest()) and replay.rule.target == 0.5
    page = opened(replayed)
    text = said(page)
    assert "simulated" in text and "Threshold rule" in text and "a target of 50%" in text
    (table,) = [element.value for element in page.dataframe if "within limits in changes" in element.value]
    assert list(table["side"]) == ["by window"] * 2 + ["one plan"] * 2 + ["threshold rule"] * 2
    shown = list(under_trace.table_rows(replay))
    assert list(table["p95 ms"]) == [row["p95 ms"] for row in shown]
    assert shown[0]["p95 ms"] == replay.sides[0].models[0].response_ms.p95


def test_one_of_an_earlier_request_is_said_and_not_shown(replayed):
    replay = replayed.get("day_replay", "review")
    replayed.put("day_replay", "review", replace(replay, request_sha256="0" * 64))
    page = opened(replayed)
    assert "of an earlier state of this scenario" in said(page)
    assert not any("within limits in changes" in element.value for element in page.dataframe)


def test_the_report_has_a_chapter_of_it(replayed):
    asked, outcome = replayed.get("plan_request", "review"), replayed.get("day", "review")
    text = report("review", asked, plan(asked), {}, outcome, replayed.get("day_replay", "review"))
    assert (
        "The day under a trace, simulated" in text
        and "bert by the hour" in text
        and "by window, p95 ms" in text
    )
    assert "The day under a trace" not in report("review", asked, plan(asked), {}, outcome)


def line(name, *p95, over=()):
    values = (*p95, *([None] * (24 - len(p95))))
    return ResponseLine(name, values, tuple(hour in over for hour in range(24)))


def test_the_chart_has_a_line_for_each_side_the_limit_and_crosses_where_it_is_not_stable():
    lines = [line("by window", 10.0, 12.0, over=(1,)), line("one plan", 9.0, 9.5)]
    figure = p95_by_hour(lines, 40.0, dark=False)
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name) == ["by window", "one plan", "limit"]
    assert list(by_name["by window"].y[:3]) == [10.0, 12.0, None]
    assert list(by_name["by window"].marker.symbol[:2]) == ["circle", "x"]
    assert set(by_name["limit"].y) == {40.0} and figure.layout.yaxis.type != "log"
    assert p95_by_hour([line("by window", 10.0, 9000.0)], 40.0, dark=True).layout.yaxis.type == "log"
    assert len(p95_by_hour(lines, None, dark=False).data) == 2
