"""A day's schedule: when each change begins, its files, and that no line applies itself."""

import re
from dataclasses import replace

import pytest
import yaml

from torchsplit_core import files
from torchsplit_core.cli import command, main
from torchsplit_core.day_plans.schedule import schedule_files, scheduled_changes
from torchsplit_core.day_plans.scheduling.cron_workflows import JOURNAL
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


DOCUMENTED = {
    "cron": {
        "schedules", "timezone", "suspend", "concurrencyPolicy", "startingDeadlineSeconds",
        "successfulJobsHistoryLimit", "failedJobsHistoryLimit", "stopStrategy", "when", "workflowSpec",
        "workflowMetadata",
    },
    "workflow": {"entrypoint", "arguments", "volumes", "templates", "nodeSelector", "serviceAccountName"},
    "template": {"name", "inputs", "nodeSelector", "steps", "container", "suspend", "volumes"},
    "container": {"image", "command", "args", "securityContext", "volumeMounts", "env", "resources"},
    "step": {"name", "template", "arguments", "when"},
}  # fmt: skip
"""Fields of argo-workflows.readthedocs.io/en/latest/cron-workflows and /fields, those that such files use."""


def test_every_change_is_a_suspended_cron_workflow_of_documented_fields(request_, outcome, tmp_path):
    texts = {file.name: file.text for file in schedule_files(request_, outcome)}
    changes = scheduled_changes(request_, outcome)
    made = list(yaml.safe_load_all(texts["cronworkflows.yaml"]))
    assert len(made) == len(changes) == len({one["metadata"]["name"] for one in made})
    for one, change in zip(made, changes, strict=True):
        assert (one["apiVersion"], one["kind"]) == ("argoproj.io/v1alpha1", "CronWorkflow")
        assert set(one) == {"apiVersion", "kind", "metadata", "spec"}
        name, spec = one["metadata"]["name"], one["spec"]
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 52
        assert spec["suspend"] is True and spec["timezone"] == "UTC" and spec["concurrencyPolicy"] == "Forbid"
        (schedule,) = spec["schedules"]
        minute, hour, *rest = schedule.split()
        assert int(hour) * 60 + int(minute) == change.begin_minute and rest == ["*"] * 3
        assert f"# {schedule} torchsplit apply {change.folder}/plan.json" in texts["schedule.cron"]
        assert set(spec) <= DOCUMENTED["cron"] and set(spec["workflowSpec"]) <= DOCUMENTED["workflow"]
        check_workflow(spec["workflowSpec"], set(texts), tmp_path)
        assert (
            one["metadata"]["annotations"]["torchsplit/transition"]
            == f"{change.folder}/transition.json"
            in texts
        )


def check_workflow(workflow, written, journal):
    """Steps lead to templates, each file in a step's words is written, and what applies comes after an approval."""
    templates = {template["name"]: template for template in workflow["templates"]}
    parameters = {entry["name"] for entry in workflow["arguments"]["parameters"]}
    volumes = {volume["name"] for volume in workflow["volumes"]}
    order = [step for (step,) in templates[workflow["entrypoint"]]["steps"]]
    assert all(set(step) <= DOCUMENTED["step"] and step["template"] in templates for step in order)
    words, used = [], set()
    for step in order:
        template = templates[step["template"]]
        assert set(template) <= DOCUMENTED["template"]
        container = template.get("container", {})
        assert set(container) <= DOCUMENTED["container"]
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
        words.append([*container.get("command", ()), *container.get("args", ())])
        used |= set(re.findall(r"{{workflow\.parameters\.(\w+)}}", str(template)))
    assert used == parameters
    files_named = [
        word for said in words for word in said if word.startswith("/var/lib/torchsplit/schedule/")
    ]
    assert (
        files_named
        and {word.removeprefix("/var/lib/torchsplit/schedule/") for word in files_named} <= written
    )
    assert any(word.endswith("transition.txt") for word in words[0])
    applies = [number for number, said in enumerate(words) if "--yes" in said]
    approvals = [number for number, step in enumerate(order) if "suspend" in templates[step["template"]]]
    assert applies == [len(order) - 1] and approvals and max(approvals) < applies[0]
    assert words[-1][0] == "torchsplit"
    journalled = [str(journal) if word == JOURNAL else word for word in words[-1][1:]]
    assert str(journal) in journalled and command._parser().parse_args(journalled).yes


def test_names_of_windows_stay_names_and_no_change_is_no_file(request_, outcome):
    long = {"night": "Nacht " * 30, "day": "{{evil}}: - x", "evening": "Ä"}
    models = tuple(
        replace(
            model,
            demand_windows=tuple(replace(item, name=long[item.name]) for item in model.demand_windows),
        )
        for model in request_.models
    )
    asked = replace(request_, models=models)
    renamed = replace(
        outcome,
        windows=tuple(replace(window, name=long[window.name]) for window in outcome.windows),
        request_sha256=None,
    )
    (text,) = [file.text for file in schedule_files(asked, renamed) if file.name == "cronworkflows.yaml"]
    made = list(yaml.safe_load_all(text))
    assert all(re.fullmatch(r"[a-z0-9-]{1,52}", one["metadata"]["name"]) for one in made)
    assert all("evil" not in str(one["spec"]).replace("windows/evil-x", "") for one in made)
    still = replace(outcome, windows=tuple(replace(window, transition=None) for window in outcome.windows))
    assert not [file for file in schedule_files(request_, still) if file.name == "cronworkflows.yaml"]


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
