"""plan --over-windows on the command line: the outcome, the summary, exit codes, options that do not fit."""

import json

import pytest

from tests.day_plans.test_day_planner import RATES, two_models
from tests.support.day_plans.days import with_windows
from tests.support.paths import EXAMPLES
from tests.support.planning.requests import on_a30, simple
from torchsplit_core.cli.command import main
from torchsplit_core.files import read_file, write_file
from torchsplit_core.values import Objective

EXAMPLE = str(EXAMPLES / "days" / "three_windows_request.json")


@pytest.fixture
def written(tmp_path):
    return lambda request: str(write_file(request, tmp_path / "request.json"))


def test_the_example_gives_its_outcome_and_says_whether_changing_pays(tmp_path, capsys):
    out = tmp_path / "day.json"
    assert main(["plan", EXAMPLE, "--over-windows", "-o", str(out)]) == 0
    day, shipped = (read_file(path)[1] for path in (out, EXAMPLES / "days" / "three_windows.json"))
    assert day.gpu_hours == shipped.gpu_hours and day.cost_per_day == shipped.cost_per_day
    err = capsys.readouterr().err
    assert "changing pays: it saves 29 GPU-hours a day (40%)" in err
    assert [line.split()[0] for line in err.splitlines()[1:4]] == ["night", "day", "evening"]
    assert "cost a day: 86 by window, 144 with one plan" in err


def test_where_one_plan_does_as_well_changing_does_not_pay(written, capsys):
    models = [with_windows(simple(name, RATES), (5.0, 5.0), (20.0, 20.0)) for name in "ab"]
    assert main(["plan", written(on_a30(*models, objective=Objective("min_gpus"))), "--over-windows"]) == 0
    printed = capsys.readouterr()
    assert "changing does not pay" in printed.err
    assert json.loads(printed.out)["format"] == "torchsplit.day"


def test_an_infeasible_window_is_named_and_ends_with_3(written, stderr_of):
    model = with_windows(simple("a", RATES), (10.0, 10.0), (500.0, 500.0))
    path = written(on_a30(model, objective=Objective("min_gpus")))
    err = stderr_of("plan", path, "--over-windows", code=3)
    assert "window day: conflict: This fleet cannot give: a at least 500 requests/s" in err
    assert "no plan for day" in err and "window night:" not in err


def test_where_only_one_plan_for_all_day_is_missing_the_exit_code_is_0(written, stderr_of):
    models = [
        with_windows(simple("a", RATES), (40.0, 40.0), (0.0, None)),
        with_windows(simple("b", RATES), (0.0, None), (40.0, 40.0)),
    ]
    path = written(on_a30(*models, objective=Objective("min_gpus")))
    err = stderr_of("plan", path, "--over-windows", code=0)
    assert "changing is needed: no one plan holds all day" in err
    assert "GPU-hours a day: 24 by window, n/a with one plan" in err


def test_times_of_transitions_count_and_a_limit_of_touched_gpus_is_kept(written, tmp_path):
    path, out = written(two_models()), tmp_path / "day.json"
    assert (
        main(["plan", path, "--over-windows", "--max-touched", "1", "--start-s", "100", "-o", str(out)]) == 0
    )
    day = read_file(out)[1]
    starts = [s.seconds for w in day.windows for s in w.transition.steps if s.action == "start"]
    assert set(starts) == {100.0}
    assert max(window.transition.touched_gpus for window in day.windows) <= 1


def test_demands_become_the_minima_of_their_windows(written, tmp_path):
    models = [with_windows(simple(name, RATES), (10.0, None), (40.0, None)) for name in "ab"]
    path, out = written(on_a30(*models, count=2, objective=Objective("min_gpus"))), tmp_path / "day.json"
    assert main(["plan", path, "--over-windows", "--demands-as-minima", "-o", str(out)]) == 0
    day = read_file(out)[1]
    least = [min(model.throughput_rps for model in window.plan.models) for window in day.windows]
    assert least[0] >= 10.0 and least[1] >= 40.0
    assert day.gpu_hours.static == 48.0


@pytest.mark.parametrize(("options", "problem"), [
    (("--over-windows", "--explain"), "--explain"),
    (("--over-windows", "--simulate"), "--simulate"),
    (("--start-s", "20"), "--start-s: is given without --over-windows"),
    (("--over-windows", "--start-s", "soon"), "neither a number"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(options, problem, stderr_of):
    assert problem in stderr_of("plan", EXAMPLE, *options)


def test_a_request_without_windows_is_refused(stderr_of):
    assert "have no demand_windows" in stderr_of("plan", EXAMPLES / "plan_request.json", "--over-windows")
