"""Curves of a run: smoothed, on a log scale, along time, with what happened where it happened; time left and sizes."""

from dataclasses import replace

import pytest

from app.charts.runs.curves import colour_of, curves
from app.charts.runs.series import exponential_average
from app.charts.theme import INK, log_axis
from app.runs.curves import MOST_MARKS, SAMPLES, STEPS, TIME, CurveSettings, curve, notes
from app.runs.restarts import restarts_of
from app.runs.status_tables import describe_time_left, format_bytes
from tests.app.runs.test_runs_page import kept, opened
from tests.support.app.page import said
from tests.support.training.folders import left_folder
from torchsplit_core.pictures.numbers import THIN, duration
from torchsplit_core.training import RunFolder
from torchsplit_core.training.monitor import RunReader, RunView


@pytest.fixture
def view(tmp_path) -> RunView:
    """Six steps of 0.2 s with a loss of 2/step, a checkpoint at 4, a rank lost at 6, gone on with after 4."""
    return RunReader(left_folder(tmp_path / "run").path).view()


def test_smoothing_is_exponential_and_begins_with_the_first_value():
    # By hand: (0.5·2 + 4) / (0.5 + 1), then ((0.25·2 + 0.5·4) + 6) / (0.25 + 0.5 + 1).
    assert exponential_average([2, 4, 6], 0.5) == pytest.approx([2, 10 / 3, 8.5 / 1.75])
    assert exponential_average([2, 4, 6], 0.0) == [2, 4, 6]
    assert exponential_average([2, float("nan"), 2], 0.9) == pytest.approx([2, 2, 2])


def test_a_smoothed_curve_has_what_was_measured_pale_behind_it(view):
    drawn = curve("diamond-1", 0, view, CurveSettings(weight=0.9))
    figure = curves([drawn], "loss", "", dark=False, logarithmic=True)
    pale, full = figure.data[:2]
    assert pale.y == tuple(view.steps.loss) and pale.line.color.startswith("rgba") and not pale.showlegend
    assert full.y == pytest.approx(exponential_average(view.steps.loss, 0.9)) and full.name == "diamond-1"
    every = log_axis("loss", "light", view.steps.loss)
    assert figure.layout.yaxis.type == "log" and figure.layout.yaxis.minor.dtick == "D1"
    assert figure.layout.yaxis.nticks == every["nticks"]
    told = notes({"diamond-1": view}, CurveSettings(weight=0.9))
    assert "Smoothed exponentially, weight 0.90" in told
    assert len(curves([curve("a", 0, view, CurveSettings())], "loss", "", dark=False).data) == 1 + 3 + 3


def test_what_happened_is_marked_at_its_step_or_its_time(view):
    marks = {event.kind: event for event in curve("a", 0, view, CurveSettings()).events}
    assert {what: (one.at, one.value) for what, one in marks.items()} == {
        "checkpoint": (4, 0.5), "rank lost": (6, 2 / 6), "restart": (4, 0.5),
    }  # fmt: skip
    assert marks["checkpoint"].words == f"checkpoint of step 4 is complete: 5{THIN}kB"
    along = {event.kind: event.at for event in curve("a", 0, view, CurveSettings(along=TIME)).events}
    assert along == pytest.approx({"checkpoint": 0.8, "rank lost": 1.2, "restart": 0.8})


def test_of_many_checkpoints_the_last_and_every_so_manieth_are_marked(tmp_path):
    folder = left_folder(tmp_path / "run", steps=200, wanted=200)
    for step in range(1, 201):
        folder.log_event("checkpoint", f"checkpoint of step {step} is complete: 5000 bytes", 0)
    view = RunReader(tmp_path / "run").view()
    marked = [event.at for event in curve("a", 0, view, CurveSettings()).events if event.kind == "checkpoint"]
    assert len(marked) <= MOST_MARKS and max(marked) == 200
    assert f"of 201 checkpoints one in {-(-201 // MOST_MARKS)} is marked" in notes(
        {"a": view}, CurveSettings()
    )


def test_rates_are_of_what_was_done_in_the_time_it_took(view):
    assert curve("a", 0, view, CurveSettings(SAMPLES)).values == pytest.approx([40] * 6)
    assert curve("a", 0, view, CurveSettings(STEPS)).values == pytest.approx([5] * 6)


def test_time_left_is_estimated_from_measured_steps_and_unknown_without(view):
    assert describe_time_left(view) == ("n/a", "it is not running")
    going = replace(view, state="running", alive=True, facts={"steps": 10_006})
    assert describe_time_left(going) == (
        f"33{THIN}min 20{THIN}s",
        f"estimated: 10{THIN}000 steps as long as the last 6",
    )
    assert describe_time_left(replace(going, steps=type(view.steps)()))[0] == "n/a"
    assert describe_time_left(replace(going, state="starting"))[0] == "n/a"
    assert describe_time_left(replace(going, facts={}))[0] == "n/a"
    assert duration(3 * 86400 + 7300) == f"3{THIN}d 2{THIN}h"
    assert duration(7500) == f"2{THIN}h 05{THIN}min"


def test_a_run_says_time_left_and_sizes_as_people_read_them(workspace):
    path = kept(workspace, "diamond-1", steps=5, wanted=25)
    RunFolder(path).log_event("checkpoint", "checkpoint of step 5 is complete: 2594814 bytes", 0)
    with RunFolder(path).exclusive(resume=True):
        RunFolder(path).log_event("resumed", "goes on after step 5 with 2 processes", 0)
        test = opened(workspace, "diamond-1")
        assert {element.label: element.value for element in test.metric}["Time left"] == f"4{THIN}s"
        assert "estimated: 20 steps as long as the last 5" in said(test)
        test.toggle(key="run-every-checkpoint").set_value(True).run()
    happened = "".join(element.proto.body for element in test.get("html"))
    assert f"2.59{THIN}MB" in happened and "2594814" not in happened
    assert format_bytes("1 bytes of it") == f"1{THIN}B of it"


def test_a_restart_has_the_words_of_all_its_events_at_the_step_that_the_ranks_go_on_after(tmp_path):
    folder = left_folder(tmp_path / "run", steps=5, wanted=9)
    for kind, words in (
        ("rank_lost", "rank 0 ran out of memory, at step 6"),
        ("out_of_memory", "rank 0: passes have 2 samples from now on"),
        ("restarted", "2 processes started again (restart 2)"),
        ("scaled", "1 process instead of 2"),
        ("resumed", "goes on after step 5 with 1 process"),
        ("layers_moved", "moved blocks.2 from stage 1 to stage 0 in 2 s"),
        ("rank_lost", "rank 0 was ended by SIGKILL, at step 7"),
    ):
        folder.log_event(kind, words, None)
    restarts = restarts_of(RunReader(folder.path).view().events)
    assert [restart.step for restart in restarts] == [4, 5, 7]
    assert restarts[0].words == (
        "rank 1 was ended by SIGKILL, at step 6",
        "goes on after step 4 with 2 processes",
    )
    assert len(restarts[1].words) == 6 and restarts[1].words[-1].startswith("moved blocks.2")
    assert restarts[2].words == ("rank 0 was ended by SIGKILL, at step 7",)


def test_the_first_start_of_a_run_is_no_restart_and_one_without_a_checkpoint_begins_at_step_1(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.log_event("scaled", "1 of the strategy's 2 stages, the most that divide 1 process")
    folder.log_event("started", "begins at step 1 with 1 process", 0)
    assert restarts_of(RunReader(folder.path).view().events) == ()
    folder.log_event("rank_lost", "rank 0 was ended by SIGKILL, at step 3", 0)
    folder.log_event("started", "begins at step 1; 2 steps since then are done again", 0)
    assert [restart.step for restart in restarts_of(RunReader(folder.path).view().events)] == [1]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_restart_is_a_vertical_line_that_says_its_words_along_its_height(view, dark, logarithmic):
    drawn = curve("run <b>", 0, view, CurveSettings())
    figure = curves([drawn], "loss", "", dark=dark, logarithmic=logarithmic)
    (line,) = [trace for trace in figure.data if trace.mode == "lines" and trace.text is not None]
    points = [(x, y, text) for x, y, text in zip(line.x, line.y, line.text, strict=True) if x is not None]
    assert {x for x, _, _ in points} == {4}
    assert points[0][1] == pytest.approx(2 / 6 if logarithmic else 0) and points[-1][1] == pytest.approx(2)
    assert {text for _, _, text in points} == {
        "run &lt;b&gt;: restart<br>rank 1 was ended by SIGKILL, at step 6<br>goes on after step 4 with 2 processes"
    }
    assert line.line.color == INK["dark" if dark else "light"]
    others = curves([drawn, replace(drawn, label="b", place=1)], "loss", "", dark=dark)
    colours = [trace.line.color for trace in others.data if trace.mode == "lines" and trace.text is not None]
    assert colours == [colour_of(0), colour_of(1)]
