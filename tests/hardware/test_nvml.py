"""The seam through pynvml, against a stand-in for the driver's C library, beside the replay it answers from."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.hardware.driver_library import install
from tests.support.hardware.listings import DATA, replay
from torchsplit_core.hardware import (
    GpuState,
    NvmlFault,
    discover_host,
    gpu_state,
    nvml_driver,
    open_nvml,
    temporary_slices,
)
from torchsplit_core.hardware.nvml import GpuProcess, profile_of
from torchsplit_core.hardware.replay import REPLAY_VARIABLE
from torchsplit_core.values import InputFault

LISTINGS = sorted(path.name for path in DATA.glob("*.json"))


@pytest.fixture(autouse=True)
def no_replay(monkeypatch) -> None:
    monkeypatch.delenv(REPLAY_VARIABLE, raising=False)


def test_every_name_of_the_wrapper_is_one_of_pynvml():
    tree = ast.parse(Path(nvml_driver.__file__).read_text(encoding="utf-8"))
    names = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id in ("lib", "pynvml"))
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "_lib")
        )
    }
    names |= {*nvml_driver._KINDS, *nvml_driver._REASONS}
    assert len(names) > 40 and "nvmlDeviceGetMigMode" in names
    assert [name for name in sorted(names) if not hasattr(pynvml, name)] == []


def test_pynvml_asks_for_profiles_with_their_names():
    for function in (
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo,
        pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo,
    ):
        assert inspect.signature(function).parameters["version"].default == 2


def working(data: Any) -> None:
    """Every GPU at work, with memory in use."""
    for number, gpu in enumerate(data["gpus"]):
        gpu["state"] |= {"memory_used_bytes": (number + 3) * 2**30, "busy_percent": 40 + number}


@pytest.mark.parametrize("name", LISTINGS)
def test_the_driver_lists_what_the_replay_lists(name, tmp_path, monkeypatch):
    listing = replay(tmp_path, name, working)
    library = install(monkeypatch, listing)
    with open_nvml() as nvml:
        assert library.sessions == 1
        assert nvml.origin is None
        assert nvml.gpu_count() == listing.gpu_count()
        for index in range(listing.gpu_count()):
            assert nvml.gpu(index) == listing.gpu(index)
            assert nvml.mig_devices(index) == listing.mig_devices(index)
            assert nvml.gpu_instances(index) == listing.gpu_instances(index)
            assert nvml.state(index) == listing.state(index)
            assert nvml.processes(index) == ()
    assert library.sessions == 0
    assert discover_host().gpus == discover_host(listing).gpus


def test_slices_are_made_and_given_back_through_the_driver(tmp_path, monkeypatch):
    listing = replay(tmp_path, "h100_nvl_four_slices.json")
    install(monkeypatch, listing)
    before = [(item.profile, item.start) for item in listing.gpu_instances(0)]
    with (
        open_nvml() as nvml,
        temporary_slices(nvml, 0, ["4g.47gb", "1g.24gb"], True, journal=tmp_path / "j") as devices,
    ):
        assert [(device.profile, device.sm_count) for device in devices] == [("4g.47gb", 64), ("1g.24gb", 26)]
        assert [(item.profile, item.start) for item in listing.gpu_instances(0)] == [
            ("4g.47gb", 0),
            ("1g.24gb", 4),
        ]
    assert [(item.profile, item.start) for item in listing.gpu_instances(0)] == before


def test_a_divided_instance_is_refused_through_the_driver(tmp_path, monkeypatch):
    listing = replay(tmp_path, "a30_three_slices.json")
    install(monkeypatch, listing).divided.add(2)
    with open_nvml() as nvml:
        parts = [part.whole for item in nvml.gpu_instances(0) for part in item.compute_instances]
        assert parts == [True, True, False]
        with (
            pytest.raises(InputFault, match=r"2g\.12gb at 2 is divided"),
            temporary_slices(nvml, 0, ["4g.24gb"], True, journal=tmp_path / "j"),
        ):
            raise AssertionError("the measurement must not start")


def test_mig_mode_that_ends_with_the_next_reset_is_refused(tmp_path, monkeypatch):
    listing = replay(tmp_path, "a30_three_slices.json")
    install(monkeypatch, listing).pending_off = True
    with open_nvml() as nvml:
        assert (nvml.gpu(0).mig_current, nvml.gpu(0).mig_pending) == (True, False)
        with (
            pytest.raises(InputFault, match="off after the next reset"),
            temporary_slices(nvml, 0, ["4g.24gb"], True, journal=tmp_path / "j"),
        ):
            raise AssertionError("the measurement must not start")


def test_a_gpu_lost_while_it_is_read_is_lost_and_not_without_memory(tmp_path, monkeypatch):
    install(monkeypatch, replay(tmp_path, "a30_three_slices.json")).lost_memory = True
    assert discover_host().message == "No GPU can be read. GPU 0 does not answer (GPU is lost)."


def test_processes_of_the_gpu(tmp_path, monkeypatch):
    def busy(data):
        data["gpus"][0]["processes"] = [{"pid": 9, "gpu_instance": 3}, {"pid": 4, "gpu_instance": None}]

    listing = replay(tmp_path, "a30_three_slices.json", busy)
    install(monkeypatch, listing)
    with open_nvml() as nvml:
        assert nvml.processes(0) == listing.processes(0) == (4, 9)
        placed = (GpuProcess(4, None), GpuProcess(9, 3))
        assert nvml.placed_processes(0) == listing.placed_processes(0) == placed
        with pytest.raises(NvmlFault) as caught:
            nvml.destroy_compute_instance(0, 3, 0)
    assert caught.value.kind == "in_use"


@pytest.mark.parametrize(("change", "call", "kind", "words"), [
    ({"permission": False}, lambda nvml: nvml.gpu_instances(0), "no_permission", "Permissions"),
    ({"lost": True}, lambda nvml: nvml.gpu(0), "lost", "lost"),
    ({}, lambda nvml: nvml.gpu(7), "not_found", "Not Found"),
    ({}, lambda nvml: nvml.create_gpu_instance(0, 5, 0, 2), "no_room", ""),
    ({}, lambda nvml: nvml.create_gpu_instance(0, 99, 0, 2), "other", "Invalid"),
    ({}, lambda nvml: nvml.destroy_gpu_instance(0, 3), "in_use", ""),
    ({}, lambda nvml: nvml.destroy_gpu_instance(0, 77), "not_found", "Not Found"),
    ({"mig": "off", "instances": []}, lambda nvml: nvml.create_gpu_instance(0, 5, 0, 2), "not_supported", ""),
])  # fmt: skip
def test_refusals_of_the_driver_are_faults_of_the_seam(change, call, kind, words, tmp_path, monkeypatch):
    def alter(data):
        for key, value in change.items():
            (data if key == "permission" else data["gpus"][0])[key] = value

    listing = replay(tmp_path, "a30_three_slices.json", alter)
    install(monkeypatch, listing)
    with open_nvml() as nvml:
        for seam in (nvml, listing):
            with pytest.raises(NvmlFault) as caught:
                call(seam)
            assert caught.value.kind == kind
        assert words in str(caught.value.words)


def test_an_old_driver_without_a_function_tells_less(tmp_path, monkeypatch):
    listing = replay(tmp_path, "a100_40gb_two_halves.json")
    library = install(monkeypatch, listing)
    original = type(library).__getattribute__

    def without(self, name):
        if name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3"):
            raise AttributeError(name)
        return original(self, name)

    monkeypatch.setattr(type(library), "__getattribute__", without)
    with open_nvml() as nvml:
        state = nvml.state(0)
        assert state.throttled_by is None and state.sm_clock_mhz == 1410
        with pytest.raises(NvmlFault) as caught:
            nvml.processes(0)
    assert caught.value.kind == "not_supported"


def test_state_in_words():
    full = GpuState(1410, 1410, 54, 212.4, ())
    assert full.words() == "SM clock 1,410 of 1,410 MHz, 54 °C, 212 W, no throttling"
    hot = GpuState(1110, None, 88, None, ("temperature (hardware)", "power cap"))
    assert hot.words() == "SM clock 1,110 MHz, 88 °C, throttled: temperature (hardware), power cap"
    assert "nothing" in GpuState(None, None, None, None, None).words()


def test_throttling_is_told_by_name(tmp_path, monkeypatch):
    def capped(data):
        data["gpus"][0]["state"]["throttled_by"] = ["power cap"]

    listing = replay(tmp_path, "a100_40gb_two_halves.json", capped)
    install(monkeypatch, listing)
    with open_nvml() as nvml:
        assert nvml.state(0).throttled_by == ("power cap",)
        assert nvml.state(0).power_w == 212.0


def test_state_is_found_by_the_uuid_of_a_gpu_or_an_instance(tmp_path):
    listing = replay(tmp_path, "a100_40gb_two_halves.json")
    for uuid in (listing.gpu(0).uuid, listing.mig_devices(0)[1].uuid):
        state = gpu_state(listing, uuid)
        assert state is not None and state.temperature_c == 54
    assert gpu_state(listing, "GPU-other") is None


def test_state_of_a_gpu_beside_a_lost_one(tmp_path):
    def lose(data):
        data["gpus"].reverse()
        data["gpus"][0]["lost"] = True

    listing = replay(tmp_path, "a100_40gb_whole_and_empty.json", lose)
    state = gpu_state(listing, listing.gpu(1).uuid)
    assert state is not None and state.sm_clock_mhz == 1410
    assert gpu_state(listing, "GPU-00000000-0000-0000-0000-000000000001") is None


@pytest.mark.parametrize(("name", "profile"), [
    ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "3g.20gb"),
    ("MIG 1c.3g.20gb", "1c.3g.20gb"),
    ("NVIDIA H100 80GB HBM3", None),
    ("NVIDIA X MIG ", None),
])  # fmt: skip
def test_the_profile_in_a_drivers_name(name, profile):
    assert profile_of(name) == profile


def test_the_versions_of_driver_and_cuda_are_told_or_unknown(tmp_path, monkeypatch):
    install(monkeypatch, replay(tmp_path, "a30_three_slices.json"))
    with nvml_driver.open_driver() as driver:
        assert driver.versions() == ("570.124.06", "12.8")
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", _not_supported)
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", _not_supported)
    with nvml_driver.open_driver() as driver:
        assert driver.versions() == ("n/a", "n/a")


def _not_supported() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
