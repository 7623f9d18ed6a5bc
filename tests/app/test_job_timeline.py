"""The timeline of a job in Activity: its bars, a job without spans, a damaged file."""

import json

import pytest

from app.charts.runs.spans import LONGEST_LABEL, span_bars
from tests.app.test_ended_work import begin, finish
from tests.cli.test_trace_report import line
from torchsplit_core import jobs
from torchsplit_core.jobs.job_kinds import TRACE, TraceParameters
from torchsplit_core.jobs.recorded.spans import trace_path
from torchsplit_core.telemetry import parse_trace, span_tree


@pytest.fixture
def job(workspace):
    started = begin(workspace, TRACE, TraceParameters("chain.pt2"))
    finish(workspace, started)
    return started


def opened(page, workspace, job):
    activity = page("activity", workspace)
    activity.session_state[f"timeline-{job}"] = True
    return activity.run()


def test_a_job_has_its_spans_on_a_time_axis(page, workspace, job):
    trace_path(workspace.store, job).write_text(
        line((1, 0, "torchsplit.job", 0, 100), (2, 1, "torchsplit.trace", 10, 70))
    )
    activity = opened(page, workspace, job)
    assert not activity.exception
    (chart,) = activity.get("plotly_chart")
    drawn = json.loads(chart.proto.spec)
    assert [trace["name"] for trace in drawn["data"]] == ["on the critical path"]
    assert any("trace m2, 60 ms of 100 ms" in caption.value for caption in activity.caption)


def test_a_job_without_spans_says_how_to_get_them(page, workspace, job):
    activity = opened(page, workspace, job)
    assert not activity.exception and not activity.get("plotly_chart")
    assert any("TORCHSPLIT_TELEMETRY" in caption.value for caption in activity.caption)


def test_a_damaged_file_is_a_message(page, workspace, job):
    trace_path(workspace.store, job).write_text("no spans\n")
    activity = opened(page, workspace, job)
    assert not activity.exception
    assert any("line 1" in error.value for error in activity.error)


def test_bars_are_where_the_spans_were_and_labels_are_short():
    text = line((1, 0, "<b>" + "x" * 90, 0, 100), (2, 1, "inner", 20, 50), (3, 1, "hidden", 25, 45))
    nodes = span_tree(parse_trace(text.encode(), "it")[0]).nodes
    for dark in (False, True):
        figure = span_bars(nodes, dark=dark)
        critical, beside = figure.data
        assert (critical.base, critical.x, critical.y) == ((0, 0.02), (0.1, 0.03), (0, 1))
        assert (beside.name, beside.base, beside.y) == ("beside it", (0.025,), (2,))
        labels = figure.layout.yaxis.ticktext
        assert labels[0].startswith("&lt;b&gt;") and labels[1] == "\u2002inner m2"
        assert max(len(label.replace("&lt;", "<").replace("&gt;", ">")) for label in labels) <= LONGEST_LABEL
        assert "<b>x" not in str(critical.customdata)


def test_a_workspace_takes_the_spans_of_its_jobs_with_it(workspace, job):
    path = trace_path(workspace.store, job)
    path.write_text(line((1, 0, "job", 0, 1)))
    assert jobs.job_spans(workspace, job).wall_ms == 1
    workspace.store.delete(workspace.id)
    assert not path.exists()
