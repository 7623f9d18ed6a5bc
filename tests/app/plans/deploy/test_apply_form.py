"""The change on its hosts: the dry run, and the act only where this server's host is named by hand."""

import socket
from hashlib import sha256

import pytest

from app.session import trust
from tests.support.app.page import field, press, run, said
from tests.support.apply.cases import A30, BEFORE, host, state, tenant
from tests.support.deployment.helpers import plan_of, planned_gpu
from torchsplit_core.files import read_text, write_text
from torchsplit_core.hardware.replay import REPLAY_VARIABLE
from torchsplit_core.jobs import runner
from torchsplit_core.jobs.job_kinds import APPLY

PLAN = plan_of(
    planned_gpu("node0/gpu0", A30, [("2g.12gb", 0, tenant("bert")), ("2g.12gb", 2, tenant("clip"))])
)
ADDRESS = {"from": "host_state:now"}


@pytest.fixture
def node0(workspace, tmp_path, monkeypatch):
    """A server on node0, whose GPU a plan runs on."""
    nvml = host(tmp_path, A30, BEFORE)
    monkeypatch.setenv(REPLAY_VARIABLE, str(nvml.path))
    monkeypatch.setattr(socket, "gethostname", lambda: "node0")
    workspace.put("plan", "review", PLAN)
    workspace.put("host_state", "now", state(nvml, {BEFORE[2]: [tenant("clip")]}))
    return workspace


def test_the_dry_run_says_what_would_be_done(page, node0, monkeypatch):
    opened = page("deploy", node0, session={"apply-dry": True}, **ADDRESS)
    texts = [code.value for code in opened.code]
    assert any(text.startswith("node0: dry run, nothing is changed. Untested on hardware") for text in texts)
    assert "torchsplit apply review.plan.json --from review.now.json" in texts


def test_commands_and_mig_mode_are_those_of_the_command(page, node0, started, tmp_path):
    runs = {BEFORE[0]: [tenant("bert")], BEFORE[2]: [tenant("clip")]}
    node0.put("host_state", "now", state(host(tmp_path, A30, BEFORE), runs))
    opened = page("deploy", node0, session={"apply-dry": True}, **ADDRESS)
    # No step of this change is of MIG mode.
    assert "Switch MIG mode" not in [box.label for box in opened.checkbox]
    field(opened, "text_input", "Command that stops").set_value("stop it")
    field(opened, "text_input", "Command that starts").set_value("start it")
    run(opened)
    texts = [code.value for code in opened.code]
    assert any("stops: by 'stop it'" in text and "starts: by 'start it'" in text for text in texts)
    line = (
        "torchsplit apply review.plan.json --from review.now.json --on-stop 'stop it' --on-start 'start it'"
    )
    assert line in texts
    opened.text_input(key="apply-host").set_value("node0")
    press(opened, "Apply on this host")
    ((_, parameters),) = started
    assert (parameters.on_stop, parameters.on_start, parameters.switch_mig_mode) == (
        "stop it",
        "start it",
        False,
    )


def test_a_plan_that_needs_mig_mode_offers_to_switch_it(page, workspace, tmp_path, monkeypatch):
    nvml = host(tmp_path, A30, (), mig="off")
    monkeypatch.setenv(REPLAY_VARIABLE, str(nvml.path))
    monkeypatch.setattr(socket, "gethostname", lambda: "node0")
    workspace.put("plan", "review", PLAN)
    workspace.put("host_state", "now", state(nvml))
    opened = page("deploy", workspace, session={"apply-dry": True}, **ADDRESS)
    assert any(
        "sudo nvidia-smi -i 0 -mig 1 && sudo nvidia-smi -i 0 --gpu-reset" in c.value for c in opened.code
    )
    field(opened, "checkbox", "Switch MIG mode").set_value(True)
    texts = [code.value for code in run(opened).code]
    assert any("with a reset of node0/gpu0" in text for text in texts)
    assert any(text.endswith("--switch-mig-mode") for text in texts)


def test_only_the_name_of_this_host_starts_the_change(page, node0, started):
    opened = page("deploy", node0, **ADDRESS)
    press(opened, "Apply on this host")
    opened.text_input(key="apply-host").set_value("node1")
    press(opened, "Apply on this host")
    assert [box.value for box in opened.error] == ["This host is node0. Nothing was changed."] and not started
    opened.text_input(key="apply-host").set_value("node0")
    press(opened, "Apply on this host")
    ((kind, parameters),) = started
    assert (kind, parameters.request, parameters.host) == ("apply", "review", "node0")
    assert read_text(parameters.state, origin="state")[1] == node0.get("host_state", "now")
    assert not parameters.evict_foreign and not parameters.has_request


def test_a_finished_change_to_this_plan_is_told_and_one_to_another_is_not(page, node0):
    for plan_sha256, told_so in (("0" * 64, False), (sha256(write_text(PLAN).encode()).hexdigest(), True)):
        record = node0.add_job("Apply it", APPLY, {"request": "review"})
        result = {"host": "node0", "plan_sha256": plan_sha256, "journal": "/j", "changed": True, "lines": []}
        runner._write(node0.store, record.id, {"state": "done", "result": result})
        assert ("node0 was brought to this plan" in said(page("deploy", node0, **ADDRESS))) is told_so


@pytest.mark.parametrize("why", ["another host", "refused"])
def test_elsewhere_and_where_others_reach_the_server_nothing_can_be_applied(why, page, node0, monkeypatch):
    if why == "another host":
        monkeypatch.setattr(socket, "gethostname", lambda: "desk")
    else:
        monkeypatch.setattr(trust, "is_refused", lambda: True)
    opened = page("deploy", node0, **ADDRESS)
    assert "apply-host" not in [field.key for field in opened.text_input]
    assert ("Others can reach this server" in said(opened)) is (why == "refused")
