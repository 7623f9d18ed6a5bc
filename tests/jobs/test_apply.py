"""A stored plan applied as a job on a replayed host: done, done already, refused."""

from dataclasses import replace
from hashlib import sha256

import pytest

from tests.support.apply.cases import A30, AFTER, BEFORE, alter, host, stands, state, tenant
from tests.support.deployment.helpers import plan_of, planned_gpu
from torchsplit_core.apply import default_folder, journal_path, read_journal
from torchsplit_core.files import write_text
from torchsplit_core.hardware.replay import REPLAY_VARIABLE
from torchsplit_core.jobs.hosts.apply import apply_job
from torchsplit_core.jobs.job_kinds import ApplyParameters
from torchsplit_core.values import InputFault, ignore_progress
from torchsplit_core.workspace.store import Store, Workspace

PLAN = plan_of(
    planned_gpu("node0/gpu0", A30, [("2g.12gb", 0, tenant("bert")), ("2g.12gb", 2, tenant("clip"))])
)
CONFIRMED = ApplyParameters(
    "review", sha256(write_text(PLAN).encode()).hexdigest(), "", "node0", has_request=False
)


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    nvml = host(tmp_path, A30, BEFORE)
    monkeypatch.setenv(REPLAY_VARIABLE, str(nvml.path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return nvml


@pytest.fixture
def workspace(tmp_path) -> Workspace:
    return Store(tmp_path / "home").create("review")


def test_the_host_comes_to_the_plan_with_a_journal_and_a_second_job_finds_it_there(nvml, workspace):
    workspace.put("plan", "review", PLAN)
    parameters = replace(CONFIRMED, state=write_text(state(nvml, {BEFORE[2]: [tenant("clip")]})))
    lines = []
    done = apply_job(workspace, parameters, lambda share, line: lines.append(line))
    assert done["changed"] and stands(nvml) == set(AFTER) and lines == done["lines"] != []
    path = journal_path(default_folder(), "node0")
    journal = read_journal(path)
    assert done["journal"] == str(path) and journal is not None and journal.is_finished
    again = apply_job(workspace, parameters, ignore_progress)
    assert not again["changed"] and stands(nvml) == set(AFTER)


def test_nothing_is_changed_where_plan_host_or_state_are_others(nvml, workspace):
    workspace.put("plan", "review", PLAN)
    before, parameters = nvml.path.read_text(), replace(CONFIRMED, state=write_text(state(nvml)))
    for wrong, words in (
        (replace(parameters, plan_sha256="0" * 64), "is another one than when its change was confirmed"),
        (replace(parameters, host="node7"), "has no GPU of the host 'node7'"),
        (replace(parameters, state=write_text(state(host_of(nvml, AFTER)))), "older than the host"),
    ):
        with pytest.raises(InputFault, match=words):
            apply_job(workspace, wrong, ignore_progress)
    assert nvml.path.read_text() == before


def host_of(nvml, layout):
    folder = nvml.path.parent / "other"
    folder.mkdir()
    return host(folder, A30, layout)


def test_a_host_that_cannot_come_to_the_plan_and_one_without_a_driver_say_so(nvml, workspace, monkeypatch):
    workspace.put("plan", "review", PLAN)
    busy = state(nvml)
    taken = tuple(replace(item, tenants=None) for item in busy.gpus[0].instances)
    alter(
        nvml,
        processes=[
            {"pid": 7, "gpu_instance": 1},
            {"pid": 8, "gpu_instance": 2},
            {"pid": 9, "gpu_instance": 3},
        ],
    )
    text = write_text(replace(busy, gpus=(replace(busy.gpus[0], instances=taken),)))
    with pytest.raises(InputFault, match="cannot be reached"):
        apply_job(workspace, replace(CONFIRMED, state=text), ignore_progress)
    monkeypatch.delenv(REPLAY_VARIABLE)
    with pytest.raises(InputFault, match="Apply the plan on the host"):
        apply_job(workspace, replace(CONFIRMED, state=text), ignore_progress)
