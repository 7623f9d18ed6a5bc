"""A narrow interface to NVIDIA's management library: the calls that TorchSplit needs, with its own value types.

`nvml_driver` implements it by the installed driver, `replay` by a listing in a file. Reading needs no privileges
except for `gpu_instances`; creating and destroying instances needs administrator rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

NvmlKind = Literal[
    "no_driver", "no_permission", "not_supported", "not_found", "in_use", "no_room", "lost", "other"
]


class NvmlFault(Exception):
    """A call that the driver refused. `kind` is for programs, `words` is the driver's message."""

    def __init__(self, kind: NvmlKind, words: str) -> None:
        super().__init__(words)
        self.kind: NvmlKind = kind
        self.words = words


@dataclass(frozen=True, slots=True)
class GpuListing:
    """A GPU as the driver lists it. `pci_device_id` is like "0x20B010DE", device id before vendor id.

    The MIG modes are None on a GPU without MIG; `mig_pending` is the mode after the next reset.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    pci_device_id: str | None
    mig_current: bool | None
    mig_pending: bool | None


@dataclass(frozen=True, slots=True)
class MigDeviceListing:
    """A MIG device, which is a compute instance in a GPU instance. `name` is the driver's.

    `profile` is like "3g.20gb", or "1c.3g.20gb" if the compute instance is only a part of its GPU
    instance; None if the name contains none. Ids are None if an old driver does not report them.
    """

    uuid: str
    name: str
    profile: str | None
    gpu_instance_id: int | None
    compute_instance_id: int | None
    memory_bytes: int | None
    sm_count: int | None


@dataclass(frozen=True, slots=True)
class ComputeInstanceListing:
    """A compute instance; `whole`: it takes all compute slices of its GPU instance."""

    id: int
    whole: bool


@dataclass(frozen=True, slots=True)
class GpuInstanceListing:
    """A GPU instance and its placement in memory slots. Without compute instances it is not a MIG device."""

    id: int
    profile_id: int
    profile: str
    start: int
    size: int
    compute_instances: tuple[ComputeInstanceListing, ...]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU. `gpu_instance_id` None: on the whole GPU, or the driver does not say where."""

    pid: int
    gpu_instance_id: int | None


@dataclass(frozen=True, slots=True)
class GpuState:
    """The present state of a GPU, for the notes of a measurement; None for what the driver does not report.

    `throttled_by` has one phrase for each reason that lowers the clocks, except idleness. `busy_percent`: share of the
    driver's last sample in which a kernel ran; the driver reports none in MIG mode.
    """

    sm_clock_mhz: int | None
    max_sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttled_by: tuple[str, ...] | None
    memory_used_bytes: int | None = None
    busy_percent: int | None = None

    def words(self) -> str:
        """One line, for example "SM clock 1,410 of 1,410 MHz, 54 °C, 212 W, no throttling"."""
        parts = []
        if self.sm_clock_mhz is not None:
            most = "" if self.max_sm_clock_mhz is None else f" of {self.max_sm_clock_mhz:,}"
            parts.append(f"SM clock {self.sm_clock_mhz:,}{most} MHz")
        if self.temperature_c is not None:
            parts.append(f"{self.temperature_c} °C")
        if self.power_w is not None:
            parts.append(f"{self.power_w:.0f} W")
        if self.throttled_by is not None:
            parts.append(
                f"throttled: {', '.join(self.throttled_by)}" if self.throttled_by else "no throttling"
            )
        return ", ".join(parts) or "the driver tells nothing of clocks and temperature"


class Nvml(Protocol):
    """The calls to the management library. Every method raises NvmlFault and nothing else.

    GPUs are identified by their index in this listing, which may change with the next one: store UUIDs.
    """

    @property
    def origin(self) -> str | None:
        """None for this machine's driver, else a sentence that says what answers instead."""

    def gpu_count(self) -> int:
        """The number of GPUs, including those that do not answer."""

    def gpu(self, index: int) -> GpuListing:
        """The GPU of that index; a fault of kind "lost" if it fell off the bus."""

    def mig_devices(self, index: int) -> tuple[MigDeviceListing, ...]:
        """The MIG devices of a GPU in the driver's order; none if MIG is off."""

    def gpu_instances(self, index: int) -> tuple[GpuInstanceListing, ...]:
        """The GPU instances of a GPU, sorted by start. Needs administrator rights."""

    def processes(self, index: int) -> tuple[int, ...]:
        """The ids of processes that compute on a GPU or any of its instances, ascending."""

    def placed_processes(self, index: int) -> tuple[GpuProcess, ...]:
        """The same with the GPU instance of each, by id and instance."""

    def state(self, index: int) -> GpuState:
        """Clocks, temperature, power and what lowers the clocks."""

    def create_gpu_instance(self, index: int, profile_id: int, start: int, size: int) -> int:
        """Create a GPU instance at that placement and return its id; "no_room" if it does not fit there."""

    def create_compute_instance(self, index: int, gpu_instance_id: int) -> int:
        """Create the compute instance that takes all of a GPU instance, and return its id."""

    def destroy_compute_instance(self, index: int, gpu_instance_id: int, compute_instance_id: int) -> None:
        """Remove a compute instance; "in_use" if a process computes on it."""

    def destroy_gpu_instance(self, index: int, gpu_instance_id: int) -> None:
        """Remove a GPU instance; "in_use" while it has compute instances."""

    def set_mig_mode(self, index: int, is_on: bool) -> None:
        """Switch MIG mode, at once or (`mig_pending`) with the next reset; "in_use" while the GPU has instances."""

    def reset_gpu(self, index: int) -> None:
        """Reset the GPU, which a pending MIG mode waits for; "in_use" while something holds it."""


def sorted_processes(pairs: Iterable[tuple[int, int | None]]) -> tuple[GpuProcess, ...]:
    """Processes of (id, GPU instance), each once; a process that is also listed with its instance is there alone."""
    unique = set(pairs)
    located = {pid for pid, place in unique if place is not None}
    listed = [pair for pair in unique if pair[1] is not None or pair[0] not in located]
    return tuple(
        GpuProcess(pid, place)
        for pid, place in sorted(listed, key=lambda pair: (pair[0], -1 if pair[1] is None else pair[1]))
    )


def pids(processes: Iterable[GpuProcess]) -> tuple[int, ...]:
    """Their ids, each once, ascending."""
    return tuple(sorted({process.pid for process in processes}))


def profile_of(name: str) -> str | None:
    """The profile in a driver's name: "3g.20gb" of "NVIDIA A100-SXM4-40GB MIG 3g.20gb"."""
    head, separator, profile = name.rpartition("MIG ")
    return profile.strip() or None if separator or head else None


def gpu_state(nvml: Nvml, uuid: str) -> GpuState | None:
    """The state of the GPU that has, or contains a MIG device with, that UUID; None if none answers."""
    try:
        for index in range(nvml.gpu_count()):
            if _is_of(nvml, index, uuid):
                return nvml.state(index)
    except NvmlFault:
        return None
    return None


def _is_of(nvml: Nvml, index: int, uuid: str) -> bool:
    try:
        gpu = nvml.gpu(index)
        return gpu.uuid == uuid or any(item.uuid == uuid for item in nvml.mig_devices(index))
    except NvmlFault:
        return False  # another GPU's fault does not affect this one
