"""A day's schedule: when each change begins, its files, and that no line applies itself."""

from dataclasses import replace

import pytest
import yaml

from torchsplit_core import files
from torchsplit_core.cli import main
from torchsplit_core.day_plans.schedule import schedule_files, scheduled_changes
from torchsplit_core.planning.outcome.build import no_plan
from torchsplit_core.planning.request.hash import request_hash
from torchsplit_core.transition import state_of_plan, transition_fault
from torchsplit_core.values import InputFault

DAY, REQUEST = "examples/days/three_windows.json", "examples/days/three_windows_request.json"


@pytest.fixture(scope="module")
def outcome():
    return files.read_file(DAY)[1]


@pytest.fixture(scope="module")
def request_():
    return files.read_file(REQUEST)[1]


def test_a_change_begun_ahead_ends_as_its_window_begins_and_others_begin_then(request_, outcome):
    changes = scheduled_changes(request_, outcome)
    windows = {window.name: window for window in request_.models[0].demand_windows}
    assert [change.after for change in changes] == ["day", "evening", "night"]
    for change, planned in zip(changes, outcome.windows, strict=True):
        begins = windows[change.after].minutes[0]
        seconds = sum(step.seconds or 0.0 for step in planned.transition.steps)
        if planned.ahead:
            assert 0 <= (begins - change.begin_minute) * 60 - seconds < 60
        else:
            assert change.begin_minute == begins
    assert {planned.ahead for planned in outcome.windows} == {True, False}


def test_every_window_has_its_plan_and_layout_and_every_change_its_steps(request_, outcome):
    texts = {file.name: file.text for file in schedule_files(request_, outcome)}
    for number, planned in enumerate(outcome.windows):
        folder = f"windows/{planned.name}"
        assert files.read_text(texts[f"{folder}/plan.json"])[1] == planned.plan
        asked = files.read_text(texts[f"{folder}/plan_request.json"])[1]
        assert request_hash(asked) == planned.plan.request_sha256
        (entries,) = yaml.safe_load(texts[f"{folder}/mig-parted.yaml"])["mig-configs"].values()
        assert any(entry["mig-enabled"] for entry in entries)
        before = outcome.windows[number - 1]
        change = files.read_text(texts[f"{folder}/transition.json"])[1]
        assert transition_fault(planned.plan, state_of_plan(before.plan), change) is None
        assert texts[f"{folder}/transition.txt"].strip()
    lines = texts["schedule.cron"].splitlines()
    assert lines and all(line.startswith("#") for line in lines)
    assert sum("torchsplit apply windows/" in line for line in lines) == 3
    assert "Nothing here applies itself" in texts["SCHEDULE.md"] and "17:59" in texts["SCHEDULE.md"]


def test_a_day_of_another_request_or_without_a_plan_is_refused(request_, outcome):
    other = replace(request_, seed=request_.seed + 1)
    with pytest.raises(InputFault, match="not the request that this day answers"):
        schedule_files(other, outcome)
    first = outcome.windows[0]
    none = no_plan(request_, "infeasible", first.plan.statistics)
    with pytest.raises(InputFault, match="has no plan for night"):
        schedule_files(request_, replace(outcome, windows=(replace(first, plan=none), *outcome.windows[1:])))
    with pytest.raises(InputFault, match="runs the models of one plan"):
        schedule_files(request_, outcome, ["kubernetes"])


def test_the_command_writes_the_schedule_and_says_what_is_missing(tmp_path, capsys):
    assert main(["deploy", DAY, "--request", REQUEST, "-o", str(tmp_path), "--format", "nvidia-smi"]) == 0
    written = capsys.readouterr().out
    assert "SCHEDULE.md" in written and "apply-mig.sh" in written and "mig-parted.yaml" not in written
    for arguments, words in (
        (["deploy", DAY, "-o", str(tmp_path)], "--request"),
        (["deploy", DAY, "--request", REQUEST, "-o", str(tmp_path), "--image", "bert=x"], "day of several"),
        (["deploy", REQUEST, "-o", str(tmp_path)], "is a torchsplit.plan_request file"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
