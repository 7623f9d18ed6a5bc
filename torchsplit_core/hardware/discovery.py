"""What this machine has: CPU, memory, and NVIDIA GPUs with their MIG state through NVML (read only)."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsplit_core.hardware.catalogue import catalogue

GIB = 2**30


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device that exists now: its name as the driver says it, UUID and memory."""

    name: str
    uuid: str
    memory_gib: float | None


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of this machine. `gpu_type` is its catalogue name, None where the catalogue has not got it.

    `mig_enabled` is None where the GPU has no MIG mode.
    """

    index: int
    name: str
    uuid: str
    memory_gib: float | None
    gpu_type: str | None
    mig_enabled: bool | None
    instances: tuple[MigInstance, ...] = ()


@dataclass(frozen=True, slots=True)
class HostReport:
    """This machine. `message` says in one sentence what was found of GPUs, or why none."""

    cpu_name: str
    cpu_cores: int
    memory_gib: float | None
    gpus: tuple[HostGpu, ...]
    message: str


def discover_host() -> HostReport:
    """Look at this machine. No driver and no GPU are ordinary answers, told in `message`."""
    gpus, message = _gpus()
    return HostReport(_cpu_name(), os.cpu_count() or 1, _memory_gib(), gpus, message)


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def _memory_gib() -> float | None:
    # sysconf is missing on Windows and its names differ on other systems: unknown, not zero.
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return None


def _gpus() -> tuple[tuple[HostGpu, ...], str]:
    try:
        import pynvml
    except ImportError:
        return (), "No GPU: the NVIDIA management library for Python (nvidia-ml-py) is not installed."
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as fault:
        return (), f"No GPU: the NVIDIA driver is not here or does not answer ({fault})."
    try:
        found = tuple(_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as fault:
        return (), f"No GPU can be read: {fault}."
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    if not found:
        return (), "No GPU: the NVIDIA driver is here but lists none."
    enabled = sum(gpu.mig_enabled is True for gpu in found)
    return found, f"{len(found)} GPU{'s' if len(found) > 1 else ''}, MIG enabled on {enabled}."


def _gpu(nvml: Any, index: int) -> HostGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory: float | None = None
    with suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB
    pci_id: str | None = None
    with suppress(nvml.NVMLError):
        pci_id = f"0x{nvml.nvmlDeviceGetPciInfo(handle).pciDeviceId:08X}"
    mig_enabled: bool | None = None
    with suppress(nvml.NVMLError):
        mig_enabled = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    return HostGpu(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory_gib=memory,
        gpu_type=_catalogue_name(pci_id),
        mig_enabled=mig_enabled,
        instances=_instances(nvml, handle) if mig_enabled else (),
    )


def _instances(nvml: Any, handle: Any) -> tuple[MigInstance, ...]:
    found = []
    count = 0
    with suppress(nvml.NVMLError):
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    for index in range(count):
        # NVML numbers possible devices; one that does not exist answers "not found".
        with suppress(nvml.NVMLError):
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            memory: float | None = None
            with suppress(nvml.NVMLError):
                memory = nvml.nvmlDeviceGetMemoryInfo(device).total / GIB
            name = _text(nvml.nvmlDeviceGetName(device))
            found.append(MigInstance(name, _text(nvml.nvmlDeviceGetUUID(device)), memory))
    return tuple(found)


def _catalogue_name(pci_id: str | None) -> str | None:
    """Device ids are upper-case hex with the vendor in the low half, as NVML gives them."""
    for name, gpu in catalogue().items():
        if pci_id is not None and pci_id.lower() in {known.lower() for known in gpu.pci_device_ids}:
            return name
    return None


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
