"""What this machine has: CPU, memory, and NVIDIA GPUs with their MIG state through NVML (read only)."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from torchsplit_core.hardware.catalogue import catalogue
from torchsplit_core.hardware.nvml import MigDeviceListing, Nvml, NvmlFault
from torchsplit_core.hardware.nvml_driver import open_driver
from torchsplit_core.hardware.replay import replay_from_environment
from torchsplit_core.values.units import GIB


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device that exists now: its name as the driver says it, UUID and memory.

    `profile` is like "3g.20gb" ("1c.3g.20gb" for a part of one), None where the name tells none.
    """

    name: str
    uuid: str
    memory_gib: float | None
    profile: str | None = None
    sm_count: int | None = None
    gpu_instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of this machine. `gpu_type` is its catalogue name, None where the catalogue has not got it.

    `mig_enabled` is None where the GPU has no MIG mode. A GPU in MIG mode is itself no CUDA device: a
    process sees one of its instances, or nothing where it has none.
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


@contextmanager
def open_nvml() -> Iterator[Nvml]:
    """The management library: a replayed listing where TORCHSPLIT_NVML_REPLAY names one, else the driver.

    Raises NvmlFault where there is no driver, InputFault for a listing that cannot be read.
    """
    replay = replay_from_environment()
    if replay is not None:
        yield replay
        return
    with open_driver() as driver:
        yield driver


def discover_host(nvml: Nvml | None = None) -> HostReport:
    """Look at this machine, or at the GPUs that `nvml` tells of (default: as `open_nvml` finds).

    No driver and no GPU are ordinary answers, told in `message`, and so is a GPU that does not answer.
    Raises InputFault for a replayed listing that cannot be read.
    """
    try:
        if nvml is not None:
            gpus, message = _gpus(nvml)
        else:
            with open_nvml() as library:
                gpus, message = _gpus(library)
    except NvmlFault as fault:
        gpus, message = (), f"No GPU: {fault.words}."
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


def _gpus(nvml: Nvml) -> tuple[tuple[HostGpu, ...], str]:
    """The GPUs that answer, and the sentence about them."""
    gpus, failures = [], []
    count = nvml.gpu_count()
    for index in range(count):
        try:
            gpus.append(read_gpu(nvml, index))
        except NvmlFault as fault:
            failures.append(f"GPU {index} does not answer ({fault.words}).")
    enabled = sum(gpu.mig_enabled is True for gpu in gpus)
    if not count:
        message = "No GPU: the NVIDIA driver is here but lists none."
    elif not gpus:
        message = "No GPU can be read."
    else:
        message = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}, MIG enabled on {enabled}."
    return tuple(gpus), " ".join(filter(None, (message, *failures, nvml.origin)))


def read_gpu(nvml: Nvml, index: int) -> HostGpu:
    """One GPU with its MIG devices. Raises NvmlFault where it does not answer."""
    gpu = nvml.gpu(index)
    return HostGpu(
        index=index,
        name=gpu.name,
        uuid=gpu.uuid,
        memory_gib=_gib(gpu.memory_bytes),
        gpu_type=_catalogue_name(gpu.pci_device_id, gpu.name),
        mig_enabled=gpu.mig_current,
        instances=tuple(map(_instance, nvml.mig_devices(index))) if gpu.mig_current else (),
    )


def _instance(device: MigDeviceListing) -> MigInstance:
    return MigInstance(
        name=device.name,
        uuid=device.uuid,
        memory_gib=_gib(device.memory_bytes),
        profile=device.profile,
        sm_count=device.sm_count,
        gpu_instance_id=device.gpu_instance_id,
    )


def _gib(size: int | None) -> float | None:
    return None if size is None else size / GIB


def _catalogue_name(pci_id: str | None, product: str) -> str | None:
    """The type of that PCI id, else of that product name.

    Device ids are upper-case hex with the vendor in the low half, as NVML gives them. Cards of one id and two sizes
    of memory (an RTX PRO 5000 has 48 GB or 72) are in the catalogue by their names alone.
    """
    for name, gpu in catalogue().items():
        if pci_id is not None and pci_id.lower() in {known.lower() for known in gpu.pci_device_ids}:
            return name
    return next((name for name, gpu in catalogue().items() if product in gpu.product_names), None)
