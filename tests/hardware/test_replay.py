"""The replayed listing: it says what it is, judges as the driver does, and keeps what was changed."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.hardware.listings import DATA, replay
from tests.support.paths import ROOT
from torchsplit_core.hardware import NvmlFault, discover_host, gpu_type, legal_layouts, open_nvml
from torchsplit_core.hardware.replay import REPLAY_VARIABLE, ReplayNvml
from torchsplit_core.values import InputFault


def empty(data: dict[str, Any]) -> None:
    data["gpus"][0]["instances"] = []


def test_the_a30_is_as_its_transcript_lists_it():
    """nvidia-smi mig -lgi and -L of the transcript: profile id, instance id, start:size, UUIDs in order."""
    nvml = ReplayNvml(DATA / "a30_three_slices.json")
    assert [(i.profile, i.profile_id, i.id, i.start, i.size) for i in nvml.gpu_instances(0)] == [
        ("1g.6gb", 14, 3, 0, 1), ("1g.6gb", 14, 4, 1, 1), ("2g.12gb", 5, 2, 2, 2),
    ]  # fmt: skip
    assert [(device.profile, device.uuid[:12]) for device in nvml.mig_devices(0)] == [
        ("2g.12gb", "MIG-1b8509c0"), ("1g.6gb", "MIG-41b9eab5"), ("1g.6gb", "MIG-55dcd9bd"),
    ]  # fmt: skip
    first = nvml.mig_devices(0)[0]
    assert (first.sm_count, first.name) == (28, "NVIDIA A30 MIG 2g.12gb")


def test_a_replay_never_passes_for_this_machine():
    nvml = ReplayNvml(DATA / "h100_nvl_four_slices.json")
    assert str(nvml.origin).startswith("Replayed listing, not this machine's GPU")
    assert discover_host(nvml).message.endswith(str(nvml.origin))


def test_the_variable_reaches_another_process(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    program = (
        "from torchsplit_core.hardware import discover_host, open_nvml\n"
        "print(len(discover_host().gpus[0].instances))\n"
        "with open_nvml() as nvml:\n"
        "    nvml.destroy_compute_instance(0, 2, 0)\n"
        "    nvml.destroy_gpu_instance(0, 2)\n"
    )
    environment = {**os.environ, REPLAY_VARIABLE: str(nvml.path)}
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "3"
    assert [device.profile for device in nvml.mig_devices(0)] == ["1g.6gb", "1g.6gb"]


def test_the_variable_here_and_without_it(monkeypatch):
    monkeypatch.setenv(REPLAY_VARIABLE, str(DATA / "t4_without_mig.json"))
    assert [gpu.name for gpu in discover_host().gpus] == ["Tesla T4"]
    with open_nvml() as nvml:
        assert isinstance(nvml, ReplayNvml)
    monkeypatch.setenv(REPLAY_VARIABLE, "")
    assert "Tesla T4" not in {gpu.name for gpu in discover_host().gpus}


def test_every_legal_layout_can_be_made_and_removed(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json", empty)
    kind = gpu_type("A30-24GB")
    layouts = legal_layouts(kind)
    assert len(layouts) > 10
    for layout in layouts:
        for item in layout.placed:
            profile = kind.profile(item.profile)
            number = nvml.create_gpu_instance(0, profile.profile_id, item.start, profile.memory_slices)
            assert nvml.create_compute_instance(0, number) == 0
        made = nvml.gpu_instances(0)
        assert [(i.profile, i.start) for i in made] == [(i.profile, i.start) for i in layout.placed]
        assert len({device.uuid for device in nvml.mig_devices(0)}) == len(made)
        for instance in made:
            nvml.destroy_compute_instance(0, instance.id, 0)
            nvml.destroy_gpu_instance(0, instance.id)


@pytest.mark.parametrize(("profile_id", "start", "size", "kind"), [
    (14, 3, 1, "no_room"),  # overlaps the 2g.12gb at 2
    (5, 0, 2, "no_room"),  # overlaps both 1g.6gb
    (5, 1, 2, "no_room"),  # no placement of the profile
    (0, 0, 4, "no_room"),
    (5, 0, 1, "other"),  # not the profile's size
    (99, 0, 1, "other"),
])  # fmt: skip
def test_what_cannot_stand_there_is_refused(profile_id, start, size, kind, tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    before = nvml.path.read_bytes()
    with pytest.raises(NvmlFault) as caught:
        nvml.create_gpu_instance(0, profile_id, start, size)
    assert caught.value.kind == kind
    assert nvml.path.read_bytes() == before


def test_an_instance_in_use_and_one_with_a_compute_instance_stay(tmp_path):
    def busy(data):
        data["gpus"][0]["processes"] = [{"pid": 4711, "gpu_instance": 3}]

    nvml = replay(tmp_path, "a30_three_slices.json", busy)
    for call in (lambda: nvml.destroy_compute_instance(0, 3, 0), lambda: nvml.destroy_gpu_instance(0, 4)):
        with pytest.raises(NvmlFault, match="In use"):
            call()
    with pytest.raises(NvmlFault, match="taken"):
        nvml.create_compute_instance(0, 4)
    with pytest.raises(NvmlFault, match="Not Found"):
        nvml.destroy_compute_instance(0, 4, 5)
    nvml.destroy_compute_instance(0, 4, 0)
    nvml.destroy_gpu_instance(0, 4)
    assert [item.id for item in nvml.gpu_instances(0)] == [3, 2]


def test_without_rights_it_reads_devices_but_changes_nothing(tmp_path):
    def no_rights(data):
        data["permission"] = False

    nvml = replay(tmp_path, "a30_three_slices.json", no_rights)
    assert len(nvml.mig_devices(0)) == 3
    for call in (
        lambda: nvml.gpu_instances(0),
        lambda: nvml.create_gpu_instance(0, 14, 0, 1),
        lambda: nvml.destroy_gpu_instance(0, 3),
    ):
        with pytest.raises(NvmlFault, match="Insufficient Permissions"):
            call()


def broken(**values: Any) -> Callable[[dict[str, Any]], None]:
    def change(data):
        data["gpus"][0].update(values)

    return change


@pytest.mark.parametrize("change", [
    lambda data: data.update(format="torchsplit.profile"),
    lambda data: data.update(version=2),
    lambda data: data.pop("source"),
    lambda data: data.update(permission="yes"),
    lambda data: data.update(gpus=None),
    lambda data: data["gpus"][0].pop("uuid"),
    broken(mig="maybe"),
    broken(mig="off"),  # with instances
    broken(type=None),
    broken(type="A31"),
    broken(memory_mib="much"),
    broken(memory_mib="12"),
    broken(pci_device_id=1.5),
    broken(name=3),
    broken(memory_mib=10**400),
    broken(instances=[{"id": 1, "profile": "2g.12gb", "start": 1, "compute_instance": 0, "uuid": "MIG-x"}]),
    broken(processes=[{"pid": "x", "gpu_instance": None}]),
])  # fmt: skip
def test_a_listing_that_is_none_is_refused_with_its_name(change, tmp_path):
    with pytest.raises(InputFault, match=REPLAY_VARIABLE) as caught:
        replay(tmp_path, "a30_three_slices.json", change)
    assert "a30_three_slices.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000])
def test_a_file_that_is_no_listing_is_refused(text, tmp_path, monkeypatch):
    path = tmp_path / "listing.json"
    path.write_text(text)
    monkeypatch.setenv(REPLAY_VARIABLE, str(path))
    with pytest.raises(InputFault, match="listing"):
        discover_host()
    path.unlink()
    with pytest.raises(InputFault, match="cannot be read: no such file"):
        discover_host()


def test_a_key_that_stands_twice_is_named(tmp_path):
    nvml = replay(tmp_path, "a30_three_slices.json")
    nvml.path.write_text(nvml.path.read_text().replace('"mig":', '"mig": "off", "mig":', 1))
    with pytest.raises(InputFault, match="the key 'mig' stands twice in one object"):
        nvml.gpu_instances(0)
