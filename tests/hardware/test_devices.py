"""Which devices a host has and what `--device` means there, on replayed listings."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchsplit_core.hardware import HostReport, available_devices, choose_devices, discover_host
from torchsplit_core.hardware.replay import REPLAY_VARIABLE, ReplayNvml
from torchsplit_core.values import InputFault

DATA = Path(__file__).parent / "data"
EMPTY = HostReport("a processor", 2, 4.0, (), "No GPU was found.")
A100 = "GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0"
HALVES = ("MIG-c7384736-a75d-5afc-978f-d2f1294409fd", "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d")


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(REPLAY_VARIABLE, raising=False)


def host(name: str) -> HostReport:
    return discover_host(ReplayNvml(DATA / name))


def two_whole(tmp_path: Path, change: Callable[[dict[str, Any]], object] = lambda data: None) -> HostReport:
    """Two A100s, MIG off on both."""
    data = json.loads((DATA / "a100_40gb_whole_and_empty.json").read_text())
    data["gpus"][1]["mig"] = "off"
    change(data)
    (tmp_path / "two.json").write_text(json.dumps(data))
    return discover_host(ReplayNvml(tmp_path / "two.json"))


def ids(text: str, report: HostReport) -> list[str]:
    return [device.id for device in choose_devices(text, report)]


def test_a_host_without_gpu_has_its_processor():
    (cpu,) = available_devices(EMPTY)
    assert (cpu.id, cpu.gpu_type, cpu.physical, cpu.basis) == ("cpu", "CPU", "cpu", "measured")
    assert (cpu.name, cpu.memory_gib, cpu.uuid, cpu.profile) == ("a processor", 4.0, None, None)
    assert choose_devices("auto", EMPTY) == choose_devices("cpu", EMPTY) == (cpu,)


@pytest.mark.parametrize("text", ["cuda", "cuda:0", "mig", "mig:1g.10gb", "mig:MIG-x", "sm:8", "sm:1g.10gb"])
def test_gpu_devices_are_not_available_without_a_gpu(text):
    with pytest.raises(InputFault, match="not available on this host") as caught:
        choose_devices(text, EMPTY)
    assert caught.value.where == "device" and "No GPU was found." in caught.value.problem


def test_cores_of_the_processor_are_a_slice_of_it(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    one, two = choose_devices("cpu:1c,cpu:2c,cpu:1c", replace(EMPTY, cpu_cores=64))
    assert (one.id, one.profile, one.name) == ("cpu:1c", "1c", "1 core of a processor")
    assert (two.id, two.profile, two.name) == ("cpu:2c", "2c", "2 cores of a processor")
    # One measurement at a time: cores of one processor share its memory and clock.
    assert (two.kind, two.gpu_type, two.physical, two.basis) == ("cpu", "CPU", "cpu", "measured")


@pytest.mark.parametrize("text", ["cpu:3c", "cpu:64c", f"cpu:{10**30}c"])
def test_more_cores_than_the_host_has_are_refused(text, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(200)))
    with pytest.raises(InputFault, match="this process may use 2 cores"):
        choose_devices(text, EMPTY)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(InputFault, match="this process may use 1 core"):
        choose_devices("cpu:2c", EMPTY)


@pytest.mark.parametrize(
    "text", ["cpu:c", "cpu:2", "cpu:0c", "cpu:02c", "cpu:-1c", "cpu:1.5c", "cpu:²c", "cpu:2C"]
)
def test_what_is_no_number_of_cores_is_no_device(text):
    with pytest.raises(InputFault, match="or cpu:Kc"):
        choose_devices(text, EMPTY)


@pytest.mark.parametrize("text", ["", "tpu", "sm", "sm:", "cuda:", "mig:", "cpu:0", "cpu,,cuda", "auto:1"])
def test_texts_that_are_no_device(text):
    with pytest.raises(InputFault, match=r" is not a device\. Give auto, cpu, cuda"):
        choose_devices(text, host("a100_40gb_two_halves.json"))


def test_instances_of_a_listing():
    cpu, *instances = available_devices(host("a100_40gb_two_halves.json"))
    assert cpu.kind == "cpu"
    assert [device.id for device in instances] == [f"mig:{uuid}" for uuid in HALVES]
    first = instances[0]
    assert (first.kind, first.gpu_type, first.profile, first.sm_count) == ("mig", "A100-40GB", "3g.20gb", 42)
    assert (first.physical, first.gpu_index, first.uuid, first.basis) == (A100, 0, HALVES[0], "measured")
    assert first.memory_gib == pytest.approx(19.62)


def test_a_gpu_in_mig_mode_is_no_cuda_device():
    halves = host("a100_40gb_two_halves.json")
    for text in ("cuda", "cuda:0", "sm:14"):
        with pytest.raises(InputFault, match="MIG mode") as caught:
            choose_devices(text, halves)
        assert f"mig:{HALVES[0]} (3g.20gb)" in caught.value.remedy
    with pytest.raises(InputFault, match="GPU 1 in MIG mode without any instance is no device"):
        choose_devices("cuda:1", host("a100_40gb_whole_and_empty.json"))


def test_auto_prefers_a_whole_gpu_then_slices_then_the_processor():
    assert ids("auto", host("a100_40gb_whole_and_empty.json")) == ["cuda:0"]
    assert ids("auto", host("t4_without_mig.json")) == ["cuda:0"]
    assert ids("auto", host("a100_40gb_two_halves.json")) == [f"mig:{HALVES[0]}"]
    assert ids("auto", EMPTY) == ["cpu"]


def test_mig_means_one_instance_of_each_slice():
    report = host("h100_nvl_four_slices.json")
    chosen = choose_devices("mig", report)
    assert [(device.gpu_type, device.profile) for device in chosen] == [
        ("H100-NVL-94GB", "2g.24gb"),
        ("H100-NVL-94GB", "1g.12gb"),
    ]
    assert choose_devices("mig:1g.12gb", report) == chosen[1:]
    assert choose_devices("mig:MIG-34fa791a-69d2-560b-969f-f2aa1d900c44", report)[0].profile == "2g.24gb"


def test_a_slice_that_is_not_there_comes_with_the_commands_that_make_it():
    with pytest.raises(InputFault, match="not available on this host") as caught:
        choose_devices("mig:3g.20gb", host("a100_40gb_whole_and_empty.json"))
    # GPU 1 is in MIG mode and empty, so it is disturbed least.
    assert "sudo nvidia-smi mig -i 1 -cgi 3g.20gb:0 -C" in caught.value.remedy
    assert "-mig 1" not in caught.value.remedy and "Untested on hardware" in caught.value.remedy
    with pytest.raises(InputFault) as caught:
        choose_devices("mig", host("a100_40gb_whole_and_empty.json"))
    assert "-cgi 1g.5gb:0 -C" in caught.value.remedy


def test_a_slice_that_no_gpu_here_can_have():
    with pytest.raises(InputFault, match=r"1g\.6gb, 2g\.12gb, 4g\.24gb"):
        choose_devices("mig:1g.10gb", host("a30_three_slices.json"))
    with pytest.raises(InputFault, match="No GPU here can be cut"):
        choose_devices("mig", host("t4_without_mig.json"))
    with pytest.raises(InputFault, match="another UUID"):
        choose_devices("mig:MIG-gone", host("a30_three_slices.json"))


def test_whole_gpus_by_index(tmp_path):
    report = two_whole(tmp_path)
    assert ids("cuda", report) == ["cuda:0"] and ids("cuda:1", report) == ["cuda:1"]
    first = choose_devices("cuda", report)[0]
    assert (first.uuid, first.physical, first.profile, first.sm_count) == (A100, A100, None, 108)
    for text in ("cuda:2", "cuda:x", "cuda:-1"):
        with pytest.raises(InputFault, match="cuda:1"):
            choose_devices(text, report)


def test_sms_stand_for_the_plain_profile_of_least_memory(tmp_path):
    report = two_whole(tmp_path)
    (device,) = choose_devices("sm:14", report)
    assert (device.id, device.kind, device.basis, device.sm_count) == ("sm:14", "sm", "emulated", 14)
    assert (device.profile, device.memory_gib, device.uuid) == ("1g.5gb", 4.75, A100)
    assert choose_devices("sm:1g.5gb", report) == (device,)
    (larger,) = choose_devices("sm:1g.10gb", report)
    assert (larger.id, larger.profile, larger.memory_gib) == ("sm:1g.10gb", "1g.10gb", 9.75)
    (other,) = choose_devices("sm:3g.20gb@1", report)
    assert (other.id, other.gpu_index, other.sm_count) == ("sm:42@1", 1, 42)
    assert choose_devices(other.id, report) == (other,)
    assert ids("sm:14@0", report) == ["sm:14"]


def test_a_number_of_sms_of_no_profile_is_never_filed_as_a_whole_gpu(tmp_path):
    (device,) = choose_devices("sm:20", two_whole(tmp_path))
    assert (device.profile, device.memory_gib) == ("sm:20", None)


@pytest.mark.parametrize("text", ["sm:0", "sm:109", "sm:9g.90gb", "sm:-4", "sm:14@2", "sm:14@", "sm:1.5"])
def test_sms_that_a_gpu_has_not_got(text, tmp_path):
    with pytest.raises(InputFault, match="device"):
        choose_devices(text, two_whole(tmp_path))


def test_sms_of_a_gpu_outside_the_catalogue():
    report = host("t4_without_mig.json")
    (device,) = choose_devices("sm:16", report)
    assert (device.gpu_type, device.profile, device.memory_gib) == ("Tesla T4", "sm:16", None)
    with pytest.raises(InputFault, match="Give a number of SMs"):
        choose_devices("sm:1g.5gb", report)


def test_lists_name_each_device_once(tmp_path):
    report = two_whole(tmp_path)
    assert ids("cpu, sm:14,cuda,sm:1g.5gb,cuda:0,auto", report) == ["cpu", "sm:14", "cuda:0"]
    with pytest.raises(InputFault, match="tpu"):
        choose_devices("cpu,tpu", report)


@pytest.mark.parametrize(("visible", "expected"), [
    ("1", ["cuda:1"]), ("1,0", ["cuda:0", "cuda:1"]), ("", []), ("-1,0", []),
    ("GPU-e86cb44c", ["cuda:0"]), ("NoDevFiles", []),
])  # fmt: skip
def test_what_a_scheduler_hides_is_not_there(visible, expected, tmp_path, monkeypatch):
    report = two_whole(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.id for device in available_devices(report)] == ["cpu", *expected]
    with pytest.raises(InputFault, match="CUDA_VISIBLE_DEVICES"):
        choose_devices("cuda:7", report)


def test_one_visible_instance(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", HALVES[1])
    assert ids("mig", host("a100_40gb_two_halves.json")) == [f"mig:{HALVES[1]}"]


def test_a_device_that_disappears_between_two_listings(tmp_path):
    assert ids("cuda:1", two_whole(tmp_path)) == ["cuda:1"]

    def lose(data):
        data["gpus"][1]["lost"] = True

    later = two_whole(tmp_path, lose)
    assert "GPU 1 does not answer (GPU is lost)" in later.message
    assert ids("auto", later) == ["cuda:0"]
    with pytest.raises(InputFault, match="not available on this host"):
        choose_devices("cuda:1", later)


def test_the_host_is_discovered_where_none_is_given(monkeypatch):
    monkeypatch.setenv(REPLAY_VARIABLE, str(DATA / "a30_three_slices.json"))
    assert [device.profile for device in choose_devices("mig")] == ["2g.12gb", "1g.6gb"]
