"""The difference as a bash script, and the unit of a boot, against the stand-in for nvidia-smi."""

import random
import shutil
import subprocess

import pytest

from tests.support.apply.cases import A30, AFTER, BEFORE, PLAN, placed, step, straight, tenant, transition
from tests.support.seeds import repeated
from torchsplit_core.apply import HostChange, boot_unit, change_script
from torchsplit_core.hardware import gpu_type, legal_layouts
from torchsplit_core.values import HostState, StateGpu, StateInstance

pytestmark = pytest.mark.slow

STEPS = straight(A30, BEFORE, AFTER)
BERT = tenant("bert")
MOVE = [step("stop", BEFORE[0], BERT), *STEPS, step("start", ("2g.12gb", 0), BERT)]


def fake_gpu(layout=BEFORE, kind=A30, **more):
    rows = [{"name": name, "start": start, "id": index} for index, (name, start) in enumerate(layout, 1)]
    computing = [{"gi": row["id"], "name": row["name"]} for row in rows]
    return {"type": kind, "mode": "Enabled", "gi": rows, "ci": computing, "apps": [], "uuid": "GPU-0"} | more


def change(*steps, before=BEFORE, kind=A30, mig=True, uuid="GPU-0", name="node0"):
    instances = tuple(
        StateInstance(profile, start, None, (BERT,) if start == 0 else ()) for profile, start in before
    )
    gpus = (StateGpu(f"{name}/gpu0", kind, uuid, mig, instances),)
    return HostChange.of(transition(*steps), HostState(gpus), name, PLAN)


def idle(*steps, before=BEFORE, kind=A30):
    """Of a host where nothing runs."""
    instances = tuple(StateInstance(profile, start, None, ()) for profile, start in before)
    return change_script(
        HostChange.of(
            transition(*steps),
            HostState((StateGpu("node0/gpu0", kind, "GPU-0", True, instances),)),
            "node0",
            PLAN,
        )
    )


def test_without_apply_nothing_changes(fake_host):
    fake_host.set(gpu0=fake_gpu())
    done = fake_host.run(idle(*STEPS))
    assert (done.returncode, fake_host.state["changes"]) == (0, [])
    assert "1/3 destroy 1g.6gb at 0 of node0/gpu0" in done.stdout and "Nothing was changed" in done.stdout
    assert not (fake_host.directory / "apply-mig.journal").exists()


@repeated(("kind", "seed"), [(kind, seed) for seed in range(12) for kind in ("A100-40GB", A30)], 1)
def test_only_what_differs_is_changed(kind, seed, fake_host):
    layouts = [placed(layout) for layout in legal_layouts(gpu_type(kind)) if layout.placed]
    before, after = random.Random(seed).sample(layouts, 2)
    fake_host.set(gpu0=fake_gpu(before, kind))
    text = idle(*straight(kind, before, after), before=before, kind=kind)
    stayed = [row for row in fake_host.state["gpus"]["0"]["gi"] if (row["name"], row["start"]) in after]
    done = fake_host.run(text, "--apply")
    assert done.returncode == 0, done.stderr
    assert fake_host.placed(0) == sorted(after)
    gpu = fake_host.state["gpus"]["0"]
    assert all(row in gpu["gi"] for row in stayed)
    assert sorted(row["gi"] for row in gpu["ci"]) == sorted(row["id"] for row in gpu["gi"])
    count = len(fake_host.state["changes"])
    again = fake_host.run(text, "--apply")
    assert again.returncode == 0 and "as planned" in again.stdout and len(fake_host.state["changes"]) == count
    (fake_host.directory / "apply-mig.journal").unlink()
    again = fake_host.run(text, "--apply")
    assert again.returncode == 0 and "as planned: nothing to do" in again.stdout


@repeated("death", [4, 1, 2, 3, 5], 1)
def test_killed_after_any_change_it_goes_on(death, fake_host):
    fake_host.set(gpu0=fake_gpu())
    fake_host.alter(deaths=death)
    assert fake_host.run(idle(*STEPS), "--apply").returncode == -9
    assert len(fake_host.state["changes"]) == death
    fake_host.alter(deaths=None)
    done = fake_host.run(idle(*STEPS), "--apply")
    assert done.returncode == 0, done.stderr
    assert fake_host.placed(0) == sorted(AFTER) and len(fake_host.state["gpus"]["0"]["ci"]) == 2


def test_a_compute_instance_that_was_not_made_any_more_is_made(fake_host):
    fake_host.set(gpu0=fake_gpu())
    fake_host.alter(deaths=5)
    assert fake_host.run(idle(*STEPS), "--apply").returncode == -9
    gpu = fake_host.state["gpus"]["0"]
    fake_host.alter(deaths=None, gpus={"0": gpu | {"ci": gpu["ci"][:1]}})
    done = fake_host.run(idle(*STEPS), "--apply")
    assert done.returncode == 0, done.stderr
    assert fake_host.state["changes"][-1] == ["mig", "-i", "GPU-0", "-cci", "-gi", "1"]
    assert len(fake_host.state["gpus"]["0"]["ci"]) == 2


@pytest.mark.parametrize(("gpu", "said"), [
    (fake_gpu(AFTER[:1]), "older than the host: GPU GPU-0 has 2g.12gb:0, not 1g.6gb:0 1g.6gb:1 2g.12gb:2"),
    (fake_gpu((), mode="Disabled"), "MIG mode of GPU GPU-0 is Disabled"),
    (fake_gpu(ci=[]), "GPU GPU-0 has 1g.6gb:0! 1g.6gb:1! 2g.12gb:2!, not"),
    (fake_gpu(uuid="GPU-other"), "No devices were found"),
])  # fmt: skip
def test_a_state_that_is_older_than_the_host_is_refused(gpu, said, fake_host):
    fake_host.set(gpu0=gpu)
    done = fake_host.run(idle(*STEPS), "--apply")
    assert done.returncode == 1 and said in done.stdout + done.stderr, done.stderr
    assert fake_host.state["changes"] == []


def test_an_instance_in_use_is_waited_for_and_then_left(fake_host):
    fake_host.set(gpu0=fake_gpu(in_use={"1": 2}))
    done = fake_host.run(idle(*STEPS), "--apply")
    assert done.returncode == 0, done.stderr
    (fake_host.directory / "apply-mig.journal").unlink()
    fake_host.set(gpu0=fake_gpu(in_use={"2": 10**6}))
    done = fake_host.run(idle(*STEPS), "--apply", TORCHSPLIT_DRAIN_S="-2")
    assert done.returncode == 1 and "In use by another client (TorchSplit ends no process" in done.stderr
    assert fake_host.placed(0) == [("1g.6gb", 1), ("2g.12gb", 2)]


def test_hooks_stop_and_start_and_nobody_is_asked(fake_host):
    fake_host.set(gpu0=fake_gpu())
    text = change_script(change(*MOVE))
    done = fake_host.run(text, "--apply")
    assert done.returncode == 1 and "nobody does this: stop bert on 1g.6gb at 0" in done.stderr
    hooks = {
        f"TORCHSPLIT_ON_{name}": f'echo {name} "$TORCHSPLIT_MODEL" "$TORCHSPLIT_PROFILE:$TORCHSPLIT_START" >> log'
        for name in ("STOP", "START")
    }
    done = fake_host.run(text, "--apply", **hooks)
    assert done.returncode == 0, done.stderr
    assert (fake_host.directory / "log").read_text() == "STOP bert 1g.6gb:0\nSTART bert 2g.12gb:0\n"
    done = fake_host.run(change_script(change(*MOVE, uuid=None)), "--apply", **hooks)
    assert done.returncode == 1 and "is of another change" in done.stderr


def test_mig_mode_is_the_users(fake_host):
    fake_host.set(gpu0=fake_gpu((), mode="Disabled", apps=["4711, python"]))
    whole = [step("destroy", ("", 0)), step("enable_mig"), *(step("create", place) for place in AFTER)]
    state = HostState((StateGpu("node0/gpu0", A30, None, False, (StateInstance("", 0, None, ()),)),))
    text = change_script(HostChange.of(transition(*whole), state, "node0", PLAN))
    done = fake_host.run(text, "--apply", TORCHSPLIT_DRAIN_S="0")
    assert done.returncode == 1 and "has running processes" in done.stderr and "4711" in done.stderr
    fake_host.alter(gpus={"0": fake_gpu((), mode="Disabled")})
    done = fake_host.run(text, "--apply")
    assert done.returncode == 1 and "run nvidia-smi -i 0 -mig 1" in done.stderr
    fake_host.alter(gpus={"0": fake_gpu(())})
    done = fake_host.run(text, "--apply")
    assert done.returncode == 0 and fake_host.placed(0) == sorted(AFTER), done.stderr


def test_hostile_names_run_nothing(fake_host):
    evil = "x $(touch PWNED)`touch PWNED`'\"; touch PWNED # ${PWNED:?} %n \\ -- "
    there = [step("stop", BEFORE[0], tenant(evil)), *STEPS]
    instances = tuple(StateInstance(p, s, None, (tenant(evil),) if s == 0 else ()) for p, s in BEFORE)
    steps = [replace_gpu(item, f"{evil}/gpu0") for item in there]
    state = HostState((StateGpu(f"{evil}/gpu0", A30, "GPU-0", True, instances),))
    fake_host.set(gpu0=fake_gpu())
    done = fake_host.run(
        change_script(HostChange.of(transition(*steps), state, evil, PLAN)), "--apply",
        TORCHSPLIT_ON_STOP='printf %s "$TORCHSPLIT_MODEL" > model',
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (fake_host.directory / "model").read_text() == evil
    assert not (fake_host.directory / "PWNED").exists()


def replace_gpu(item, gpu):
    return type(item)(gpu, item.action, item.profile, item.start, item.tenants, item.seconds)


def test_the_boot_unit_brings_back_what_stands_after_the_change(fake_host, tmp_path):
    unit, script = boot_unit(change(*MOVE))
    assert (unit.name, script.name, script.executable) == ("torchsplit-mig.service", "apply-mig.sh", True)
    assert "ExecStart=/bin/bash /etc/torchsplit/apply-mig.sh --apply\n" in unit.text
    fake_host.set(gpu0=fake_gpu(()))
    done = fake_host.run(script.text, "--apply")
    assert done.returncode == 0 and fake_host.placed(0) == sorted(AFTER), done.stderr
    if analyze := shutil.which("systemd-analyze"):
        path = tmp_path / unit.name
        path.write_text(unit.text)
        done = subprocess.run(
            [analyze, "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=120
        )
        assert not [line for line in done.stderr.splitlines() if unit.name in line and "Unknown" in line]
