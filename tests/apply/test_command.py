"""The command apply from plan and state files to a replayed host: dry, done, cut off, refused."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.apply.cases import A30, AFTER, BEFORE, host, stands, state, tenant
from tests.support.deployment.helpers import plan_of, planned_gpu
from tests.support.paths import ROOT
from tests.support.seeds import repeated
from torchsplit_core import files
from torchsplit_core.cli.command import main
from torchsplit_core.hardware.replay import REPLAY_VARIABLE

BERT, CLIP = tenant("bert"), tenant("clip")
RUNNING = {BEFORE[0]: [BERT], BEFORE[2]: [CLIP]}
PLAN = plan_of(planned_gpu("node0/gpu0", A30, [("2g.12gb", 0, BERT), ("2g.12gb", 2, CLIP)]))


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    nvml = host(tmp_path, A30, BEFORE)
    files.write_file(state(nvml, RUNNING), tmp_path / "state.json")
    files.write_file(PLAN, tmp_path / "plan.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(REPLAY_VARIABLE, str(nvml.path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return nvml


def apply(*words):
    return main(["apply", *words])


COMMAND = ("plan.json", "--from", "state.json")


def test_dry_by_default_it_prints_who_stops_when_and_for_how_long(nvml, capsys):
    before = nvml.path.read_text()
    assert apply(*COMMAND) == 0
    text = capsys.readouterr().out
    assert text.startswith("node0: dry run, nothing is changed. Untested on hardware")
    for words in (
        "untouched tenants: 1",
        "drain and stop",
        "bert",
        "model-seconds below demand",
        "add --yes node0",
    ):
        assert words in text
    assert nvml.path.read_text() == before and not list(nvml.path.parent.rglob("*.journal.json"))


def test_done_twice_and_undone_twice(nvml, capsys):
    for done, where in (("as planned. Journal: ", AFTER), ("as planned: nothing to do\n", AFTER)):
        assert apply(*COMMAND, "--yes", "node0") == 0
        assert f"node0: {done}" in capsys.readouterr().out and stands(nvml) == set(where)
    assert apply("--status") == 0
    assert "(5 of 5 steps are done). --undo brings back" in capsys.readouterr().out
    assert apply("--undo", "--host", "node0") == 0
    assert "5  start bert on 1g.6gb at 0 of node0/gpu0" in capsys.readouterr().out and stands(nvml) == set(
        AFTER
    )
    for done in ("as before the change\n", "as before the change: nothing to do\n"):
        assert apply("--undo", "--yes", "node0") == 0
        assert capsys.readouterr().out == f"node0: {done}" and stands(nvml) == set(BEFORE)
    assert apply(*COMMAND, "--yes", "node0") == 0 and stands(nvml) == set(AFTER)


@repeated("finish", ["undo", "apply"])
def test_killed_in_a_hook_the_next_command_goes_on(nvml, finish, capsys):
    # The hook is a child of the command: it kills its parent once.
    hook = "test -e killed || { touch killed; kill -9 $PPID; }"
    command = [sys.executable, "-m", "torchsplit_core", "apply", *COMMAND, "--yes", "node0"]
    hooks = ["--on-stop", hook, "--on-start", "true"]
    done = subprocess.run([*command, *hooks], env={**dict_environment(nvml)}, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    assert apply("--status", "--host", "node0") == 0
    assert (
        "0 of 5 steps are done, step 1 (stop bert on 1g.6gb at 0 of node0/gpu0) was begun"
        in capsys.readouterr().out
    )
    words = COMMAND if finish == "apply" else ["--undo"]
    assert apply(*words, "--yes", "node0", *hooks) == 0
    assert stands(nvml) == set(AFTER if finish == "apply" else BEFORE)


def dict_environment(nvml):
    folder = str(nvml.path.parent)
    return {
        "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", REPLAY_VARIABLE: str(nvml.path),
        "XDG_STATE_HOME": folder, "XDG_RUNTIME_DIR": folder,
    }  # fmt: skip


@pytest.mark.parametrize(("words", "said"), [
    ([*COMMAND, "--yes", "node1"], "--from: has no GPU of the host 'node1'. Did you mean node0?"),
    ([*COMMAND, "--host", "node1"], "--from: has no GPU of the host 'node1'"),
    ([*COMMAND, "--yes", "node0", "--host", "node7"], "--yes: names 'node0', but this machine is 'node7'"),
    (["plan.json"], "--from: is not given"),
    ([], "PLAN: is not given"),
    (["plan.json", "--from", "plan.json", "--drain-s", "-1"], "--drain-s: is -1"),
    (["state.json", "--from", "state.json"], "torchsplit.host_state"),
    (["--undo", "--yes", "node0"], "nothing that could be undone was applied"),
    (["--undo"], "nothing was applied that could be undone"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_one_message(words, said, nvml, capsys):
    before = nvml.path.read_text()
    assert apply(*words) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
    assert nvml.path.read_text() == before


def test_the_machine_is_known_by_its_name_or_its_gpus(nvml, monkeypatch, capsys):
    monkeypatch.setattr("torchsplit_core.hardware.replay.ReplayNvml.origin", None)
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    without = replace(state(nvml, RUNNING), gpus=(replace(state(nvml, RUNNING).gpus[0], uuid=None),))
    files.write_file(without, "unnamed.json")
    words = ["plan.json", "--from", "unnamed.json", "--yes", "node0"]
    assert apply(*words) == 2
    assert "--yes: names 'node0', but this machine is 'elsewhere'" in capsys.readouterr().err
    assert apply(*words, "--host", "node0") == 0
    assert apply("--undo", "--yes", "node0") == 0
    assert apply(*COMMAND, "--yes", "node0") == 0, "by UUIDs"
    assert apply("--undo", "--yes", "node0") == 0
    monkeypatch.setattr("socket.gethostname", lambda: "node0.example.org")
    assert apply(*words) == 0


def test_foreign_tenants_in_the_way_are_infeasible_and_idle_slices_are_not(nvml, capsys):
    unknown = json.loads((nvml.path.parent / "state.json").read_text())
    for item in unknown["gpus"][0]["instances"]:
        item["tenants"] = None
    (nvml.path.parent / "unknown.json").write_text(json.dumps(unknown))
    words = ["plan.json", "--from", "unknown.json"]
    assert apply(*words) == 3
    assert "infeasible: " in capsys.readouterr().err
    assert apply(*words, "--yes", "node0") == 0, "the driver shows no process"
    assert stands(nvml) == set(AFTER)


def test_the_script_and_the_boot_unit_are_written(nvml, capsys):
    assert apply(*COMMAND, "--script") == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/usr/bin/env bash\n") and "run_step 5 GPU-0" in text
    assert apply(*COMMAND, "--boot-unit", "boot") == 0
    assert {path.name for path in (nvml.path.parent / "boot").iterdir()} == {
        "torchsplit-mig.service",
        "apply-mig.sh",
    }


def test_without_a_driver_nothing_is_applied(nvml, monkeypatch, capsys):
    monkeypatch.delenv(REPLAY_VARIABLE)
    assert apply(*COMMAND, "--yes", "node0") == 2
    assert "Run it on the host of the GPUs" in capsys.readouterr().err
    assert apply(*COMMAND) == 0, "a dry run needs none"


def test_each_host_applies_its_own_steps(tmp_path, nvml, capsys):
    first = state(nvml, RUNNING).gpus[0]
    second = replace(
        first,
        id="node1/gpu0",
        uuid="GPU-x",
        instances=tuple(replace(i, uuid=None, tenants=()) for i in first.instances),
    )
    files.write_file(replace(state(nvml), gpus=(first, second)), "two.json")
    plan = plan_of(*PLAN.gpus, planned_gpu("node1/gpu0", A30, [("4g.24gb", 0, "ocr")]))
    files.write_file(plan, "both.json")
    assert apply("both.json", "--from", "two.json") == 0
    text = capsys.readouterr().out
    assert (
        "add --yes node0" in text
        and "add --yes node1" in text
        and "steps of node1 belong to the same" in text
    )
    assert apply("both.json", "--from", "two.json", "--script") == 2
    assert apply("both.json", "--from", "two.json", "--yes", "node0") == 0
    assert "warning: steps of node1 belong to the same transition" in capsys.readouterr().err
    assert stands(nvml) == set(AFTER)


def test_hosts_without_a_name_are_this_machine_alone(nvml, monkeypatch, capsys):
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    first = state(nvml, RUNNING).gpus[0]
    files.write_file(replace(state(nvml), gpus=(replace(first, id="gpu0"),)), "unnamed.json")
    files.write_file(plan_of(replace(PLAN.gpus[0], id="gpu0")), "one.json")
    assert apply("one.json", "--from", "unnamed.json", "--yes", "node0") == 2
    assert "names 'node0', but this machine is 'elsewhere'" in capsys.readouterr().err
    assert apply("one.json", "--from", "unnamed.json", "--yes", "elsewhere") == 0 and stands(nvml) == set(
        AFTER
    )
    assert apply("--status") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("elsewhere: as plan ")
    assert apply("--status", "--host", "node9") == 0
    assert capsys.readouterr().out == "node9: nothing was applied\n"


def test_an_earlier_plan_is_a_state(nvml, capsys):
    earlier = plan_of(
        planned_gpu("node0/gpu0", A30, [("1g.6gb", 0, BERT), ("1g.6gb", 1, None), ("2g.12gb", 2, CLIP)])
    )
    files.write_file(earlier, "earlier.json")
    assert apply("plan.json", "--from", "earlier.json", "--yes", "node0") == 0 and stands(nvml) == set(AFTER)
    assert apply("plan.json", "--from", "earlier.json", "--yes", "node0") == 0
    assert "node0: as planned: nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--yes", "node0"], ["--undo"], ["--status"]])
def test_a_folder_of_a_mistyped_path_is_not_made(words, nvml, capsys):
    assert apply(*COMMAND, *words, "--journal", "no/such") == 2
    assert "--journal" in capsys.readouterr().err and not (nvml.path.parent / "no").exists()
