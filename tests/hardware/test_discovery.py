"""Host discovery with and without a GPU, against a stand-in for NVML."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from torchsplit_core.hardware import NvmlFault, discover_host
from torchsplit_core.hardware.replay import ReplayNvml


@pytest.fixture(autouse=True)
def no_replay(monkeypatch) -> None:
    monkeypatch.delenv("TORCHSPLIT_NVML_REPLAY", raising=False)


class FakeError(Exception):
    """Stands for pynvml.NVMLError."""


def fake_nvml(*, works: bool = True, gpus: int = 1, mig: bool = True) -> ModuleType:
    """A pynvml with one kind of GPU: an H100 with two MIG devices out of seven."""
    nvml = ModuleType("pynvml")

    def init():
        if not works:
            raise FakeError("Driver Not Loaded")

    def mig_device(handle, index):
        if index >= 2:
            raise FakeError("Not Found")
        return f"mig{index}"

    def mig_mode(handle):
        if not mig:
            raise FakeError("Not Supported")
        return [1, 1]

    entries = {
        "NVMLError": FakeError,
        "NVMLLibraryMismatchError": FakeError,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "nvmlInit": init,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: gpus,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda handle: (
            b"NVIDIA H100 80GB HBM3" + (b"" if isinstance(handle, int) else b" MIG 1g.10gb")
        ),
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=80 * 2**30),
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(pciDeviceId=0x233010DE),
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7,
        "nvmlDeviceGetMigDeviceHandleByIndex": mig_device,
        "nvmlDeviceGetAttributes_v2": lambda device: SimpleNamespace(multiprocessorCount=16),
        "nvmlDeviceGetGpuInstanceId": lambda device: 7 + int(device[-1]),
        "nvmlDeviceGetComputeInstanceId": lambda device: 0,
    }
    for name, value in entries.items():
        setattr(nvml, name, value)
    return nvml


def test_no_driver_is_a_calm_answer(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(works=False))
    report = discover_host()
    assert report.gpus == ()
    assert report.message.startswith("No GPU") and "Driver Not Loaded" in report.message
    assert report.cpu_cores >= 1 and report.cpu_name


def test_driver_without_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(gpus=0))
    assert discover_host().message.startswith("No GPU")


def test_gpu_with_mig_instances(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(gpus=2))
    report = discover_host()
    assert len(report.gpus) == 2
    gpu = report.gpus[0]
    assert gpu.gpu_type == "H100-SXM5-80GB" and gpu.mig_enabled is True and gpu.memory_gib == 80
    assert [item.uuid for item in gpu.instances] == ["GPU-mig0", "GPU-mig1"]
    assert [(item.profile, item.sm_count, item.gpu_instance_id) for item in gpu.instances] == [
        ("1g.10gb", 16, 7),
        ("1g.10gb", 16, 8),
    ]


def test_gpu_without_mig(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(mig=False))
    gpu = discover_host().gpus[0]
    assert gpu.mig_enabled is None and gpu.instances == ()


def test_this_machine_is_read_without_a_stand_in():
    report = discover_host()
    assert report.message.startswith("No GPU") == (report.gpus == ())


def test_a_lost_gpu_does_not_hide_the_others():
    listing = ReplayNvml(Path(__file__).parent / "data" / "a100_40gb_whole_and_empty.json")

    class FirstLost:
        origin = None

        def __getattr__(self, name: str) -> object:
            return getattr(listing, name)

        def gpu(self, index: int) -> object:
            if index == 0:
                raise NvmlFault("lost", "GPU is lost")
            return listing.gpu(index)

    report = discover_host(FirstLost())
    assert [(gpu.index, gpu.mig_enabled, gpu.instances) for gpu in report.gpus] == [(1, True, ())]
    assert report.message == "1 GPU, MIG enabled on 1. GPU 0 does not answer (GPU is lost)."
