"""Discovers this machine's CPU, memory, and NVIDIA GPUs with their MIG state through NVML (read only)."""

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
    """A MIG device that exists now, with the driver's name for it, its UUID and memory.

    `profile` is like "3g.20gb" ("1c.3g.20gb" for a part of one); None if the name contains none.
    """

    name: str
    uuid: str
    memory_gib: float | None
    profile: str | None = None
    sm_count: int | None = None
    gpu_instance_id: int | None = None


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of this machine. `gpu_type` is its catalogue name; None if it is not in the catalogue.

    `mig_enabled` is None if the GPU has no MIG mode. A GPU in MIG mode is not a CUDA device itself: a
    process sees one of its instances, or nothing if it has none.
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
    """This machine. `message` says in one sentence which GPUs it has, or why it has none."""

    cpu_name: str
    cpu_cores: int
    memory_gib: float | None
    gpus: tuple[HostGpu, ...]
    message: str


@contextmanager
def open_nvml() -> Iterator[Nvml]:
    """The management library: a replayed listing if TORCHSPLIT_NVML_REPLAY names one, else the driver.

    Raises NvmlFault if there is no driver, InputFault for a listing that cannot be read.
    """
    replay = replay_from_environment()
    if replay is not None:
        yield replay
        return
    with open_driver() as driver:
        yield driver


def discover_host(nvml: Nvml | None = None) -> HostReport:
    """Report this machine and the GPUs that `nvml` lists (default: `open_nvml`).

    A missing driver, no GPU, or a GPU that does not answer is not an error; `message` reports it.
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
    # Windows has no sysconf, and other systems have other names: then memory is unknown, not zero.
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    return None


def _gpus(nvml: Nvml) -> tuple[tuple[HostGpu, ...], str]:
    """The GPUs that answer, and a message about them."""
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
    """One GPU with its MIG devices. Raises NvmlFault if it does not answer."""
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
    """The catalogue type with that PCI id, else with that product name; None if there is none.

    PCI ids are upper-case hex with the vendor in the low half, as NVML gives them. Cards with the same id but two
    memory sizes (an RTX PRO 5000 has 48 or 72 GB) are in the catalogue only by name.
    """
    for name, gpu in catalogue().items():
        if pci_id is not None and pci_id.lower() in {known.lower() for known in gpu.pci_device_ids}:
            return name
    return next((name for name, gpu in catalogue().items() if product in gpu.product_names), None)
