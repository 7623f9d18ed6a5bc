"""The nvidia-smi scripts, run against a fake driver that refuses what a real one refuses."""

import shlex
import subprocess

import pytest

from tests.support.deployment.helpers import MIXED, plan_of, planned_gpu
from tests.support.seeds import repeated
from torchsplit_core.deployment import DeploymentFile, deploy
from torchsplit_core.hardware import catalogue, legal_layouts
from torchsplit_core.values import PlanOutcome

pytestmark = pytest.mark.slow

A100 = {"type": "A100-80GB"}
OLD = {
    "mode": "Enabled",
    "gi": [{"name": "4g.40gb", "start": 0, "id": 1}],
    "ci": [{"gi": 1, "name": "4g.40gb"}],
}
PLACED = sorted((profile, start) for profile, start, _ in MIXED)


def scripts(plan: PlanOutcome) -> dict[str, DeploymentFile]:
    return {file.name: file for file in deploy(plan, ["nvidia-smi"]) if file.name != "README.md"}


def one_script(*slices: tuple[str, int, str | None], gpu: str = "A100-80GB") -> str:
    (file,) = scripts(plan_of(planned_gpu("gpu0", gpu, slices))).values()
    assert file.executable
    return file.text


def test_without_apply_nothing_changes_and_every_command_is_shown(fake_host):
    fake_host.set(gpu0=A100 | OLD)
    before = fake_host.state["gpus"]
    done = fake_host.run(one_script(*MIXED))
    assert done.returncode == 0, done.stderr
    assert fake_host.state["changes"] == []
    assert fake_host.state["gpus"] == before
    shown = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if "would run:" in line]
    assert [shlex.split(line)[1:] for line in shown] == [
        ["mig", "-i", "0", "-dci"],
        ["mig", "-i", "0", "-dgi"],
        ["mig", "-i", "0", "-cgi", "3g.40gb:4,2g.20gb:2,1g.10gb:0,1g.10gb:1", "-C"],
    ]
    assert "present: 4g.40gb:0" in done.stdout


@repeated("present", [{}, {"mode": "Enabled"}, OLD])
def test_apply_reaches_the_plan_from_any_state(fake_host, present):
    fake_host.set(gpu0=A100 | present)
    done = fake_host.run(one_script(*MIXED), "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    assert fake_host.placed(0) == PLACED
    gpu = fake_host.state["gpus"]["0"]
    assert sorted(row["name"] for row in gpu["ci"]) == sorted(name for name, _ in PLACED)


def test_a_second_apply_changes_nothing_even_while_processes_run(fake_host):
    fake_host.set(gpu0=A100)
    text = one_script(*MIXED)
    assert fake_host.run(text, "--apply").returncode == 0
    state = fake_host.state["gpus"]["0"] | {"apps": ["4711, python"]}
    fake_host.set(gpu0=state)
    again = fake_host.run(text, "--apply")
    assert again.returncode == 0, again.stderr
    assert fake_host.state["changes"] == []


def test_a_missing_compute_instance_is_noticed(fake_host):
    fake_host.set(gpu0=A100)
    text = one_script(*MIXED)
    fake_host.run(text, "--apply")
    state = fake_host.state["gpus"]["0"]
    fake_host.set(gpu0=state | {"ci": state["ci"][1:]})
    assert fake_host.run(text, "--apply").returncode == 0
    assert len(fake_host.state["gpus"]["0"]["ci"]) == len(MIXED)


def test_no_gpu_changes_when_any_has_running_processes(fake_host, mixed_plan):
    fake_host.set(gpu0=A100, gpu1=A100, gpu2=A100 | OLD | {"apps": ["4711, python"]})
    done = fake_host.run(scripts(mixed_plan)["apply-mig-node0.sh"].text, "--apply")
    assert done.returncode == 1
    assert "4711, python" in done.stderr
    assert fake_host.state["changes"] == []


def test_each_host_has_its_script_and_unused_gpus_stay(fake_host, mixed_plan):
    assert set(scripts(mixed_plan)) == {"apply-mig-node0.sh", "apply-mig-node1.sh"}
    fake_host.set(gpu0=A100, gpu1=A100 | OLD, gpu2=A100)
    done = fake_host.run(scripts(mixed_plan)["apply-mig-node0.sh"].text, "--apply")
    assert done.returncode == 0, done.stderr
    assert fake_host.placed(0) == fake_host.placed(2) == PLACED
    assert fake_host.placed(1) == [("4g.40gb", 0)]


@pytest.mark.parametrize(("gpu", "said"), [
    ({"type": "A100-40GB", "mode": "Enabled"}, "offers no profile"),
    ({"type": "A100-40GB"}, "offers no profile"),
    (A100 | {"mode": "[N/A]"}, "has no MIG mode"),
    (A100 | {"pending": True}, "is pending"),
])  # fmt: skip
def test_a_gpu_that_cannot_be_cut_is_refused(fake_host, gpu, said):
    fake_host.set(gpu0=gpu)
    done = fake_host.run(one_script(*MIXED), "--apply")
    assert done.returncode == 1
    assert said in done.stderr
    assert all("-cgi" not in call and "-dgi" not in call for call in fake_host.state["changes"])


def test_a_failing_nvidia_smi_stops_the_script(fake_host):
    fake_host.set(gpu1=A100)
    done = fake_host.run(one_script(*MIXED), "--apply")
    assert done.returncode != 0
    assert "Done" not in done.stdout


@pytest.mark.parametrize("arguments", [["--aply"], [""], ["--apply", "x"]])
def test_unknown_arguments_do_nothing(fake_host, arguments):
    fake_host.set(gpu0=A100)
    done = fake_host.run(one_script(*MIXED), *arguments)
    assert done.returncode == 2
    assert fake_host.state["calls"] == []


def test_the_fake_refuses_the_orders_a_driver_refuses(fake_host):
    for order, fits in (("19,19,14,9", False), ("9,19,14,19", True), ("9:0,9:0", False), ("5:4", False)):
        fake_host.set(gpu0=A100 | {"mode": "Enabled"})
        assert (fake_host.smi("mig", "-i", "0", "-cgi", order, "-C").returncode == 0) is fits, order
    assert fake_host.smi("mig", "-i", "0", "-dgi").returncode != 0


def free_places(kind: str, created: list[str]) -> list[tuple[str, int]] | None:
    """What a driver makes of names without starts: the highest free start, as the fake does it."""
    gpu = catalogue()[kind]
    placed = []
    taken = set()
    for name in created:
        size = gpu.profile(name).memory_slices
        starts = [s for s in gpu.profile(name).placement_starts if not taken & set(range(s, s + size))]
        if not starts:
            return None
        taken |= set(range(max(starts), max(starts) + size))
        placed.append((name, max(starts)))
    return placed


@pytest.mark.parametrize("kind", ["A30-24GB", "A100-80GB", "H200-141GB", "RTX-PRO-6000-Blackwell-96GB"])
def test_every_layout_is_created_in_an_order_that_fits_without_starts_too(kind):
    for layout in legal_layouts(catalogue()[kind]):
        if not layout.placed:
            continue
        text = one_script(*((item.profile, item.start, None) for item in layout.placed), gpu=kind)
        (line,) = (line for line in text.splitlines() if line.startswith("cut_gpu 0"))
        created = [item.partition(":") for item in shlex.split(line)[2:]]
        assert sorted((name, int(start)) for name, _, start in created) == sorted(
            (item.profile, item.start) for item in layout.placed
        )
        assert free_places(kind, [name for name, _, _ in created]) is not None, line


def test_hostile_names_stay_comments(fake_host, tmp_path):
    evil = "x\ntouch PWNED\n$(touch PWNED)`touch PWNED`'\"; touch PWNED #"
    slices = [("7g.80gb", 0, evil)]
    files = deploy(plan_of(planned_gpu(f"{evil}/gpu0", "A100-80GB", slices)), ["nvidia-smi"])
    for file in files:
        if file.executable:
            fake_host.set(gpu0=A100)
            checked = subprocess.run(["bash", "-n"], input=file.text, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr
            assert fake_host.run(file.text).returncode == 0
    assert not (tmp_path / "PWNED").exists()
