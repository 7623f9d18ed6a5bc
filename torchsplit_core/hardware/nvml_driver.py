"""`Nvml` implemented by the installed NVIDIA driver, through pynvml (nvidia-ml-py).

Reading a GPU follows NVIDIA's NVML API reference; the calls that need MIG or administrator rights are
untested on hardware (they ran only against a stand-in for the driver's library).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, suppress
from ctypes import byref, c_uint
from typing import TYPE_CHECKING, Any, TypeVar

from torchsplit_core.hardware.nvml import (
    ComputeInstanceListing,
    GpuInstanceListing,
    GpuListing,
    GpuProcess,
    GpuState,
    MigDeviceListing,
    NvmlFault,
    NvmlKind,
    pids,
    profile_of,
    sorted_processes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

# The names of NVML's error codes for each kind; every other code is "other".
_KINDS: dict[str, NvmlKind] = {
    "NVML_ERROR_UNINITIALIZED": "no_driver",
    "NVML_ERROR_DRIVER_NOT_LOADED": "no_driver",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no_driver",
    "NVML_ERROR_NO_PERMISSION": "no_permission",
    "NVML_ERROR_NOT_SUPPORTED": "not_supported",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "not_supported",
    "NVML_ERROR_NOT_FOUND": "not_found",
    "NVML_ERROR_GPU_NOT_FOUND": "lost",
    "NVML_ERROR_GPU_IS_LOST": "lost",
    "NVML_ERROR_IN_USE": "in_use",
    "NVML_ERROR_INSUFFICIENT_RESOURCES": "no_room",
}

# Bits of nvmlDeviceGetCurrentClocksEventReasons that lower the clocks, described as in its reference.
_REASONS = {
    "nvmlClocksEventReasonApplicationsClocksSetting": "clocks set by an application",
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSyncBoost": "sync boost group",
    "nvmlClocksEventReasonSwThermalSlowdown": "temperature (driver)",
    "nvmlClocksEventReasonHwThermalSlowdown": "temperature (hardware)",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonDisplayClockSetting": "display clock setting",
}


RESET_S = 120.0
"""The longest wait for the reset of a GPU."""


class DriverNvml:
    """`Nvml` of this machine. Create it with `open_driver`, which also ends the library's session."""

    origin: str | None = None

    def __init__(self, lib: Any) -> None:
        self._lib = lib

    def gpu_count(self) -> int:
        return int(self._call(self._lib.nvmlDeviceGetCount))

    def versions(self) -> tuple[str, str]:
        """The driver's version and the newest CUDA that it runs; "n/a" for what it does not report."""
        driver = self._call_optional(self._lib.nvmlSystemGetDriverVersion)
        cuda = self._call_optional(self._lib.nvmlSystemGetCudaDriverVersion_v2)
        # NVML writes 12.8 as 12080.
        shown = "n/a" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        return "n/a" if driver is None else _text(driver), shown

    def gpu(self, index: int) -> GpuListing:
        lib, handle = self._lib, self._handle(index)
        pci = self._call_optional(lib.nvmlDeviceGetPciInfo, handle)
        modes = self._call_optional(lib.nvmlDeviceGetMigMode, handle)
        on = lib.NVML_DEVICE_MIG_ENABLE
        return GpuListing(
            index=index,
            name=_text(self._call(lib.nvmlDeviceGetName, handle)),
            uuid=_text(self._call(lib.nvmlDeviceGetUUID, handle)),
            memory_bytes=self._memory(handle),
            pci_device_id=None if pci is None else f"0x{pci.pciDeviceId:08X}",
            mig_current=None if modes is None else modes[0] == on,
            mig_pending=None if modes is None else modes[1] == on,
        )

    def mig_devices(self, index: int) -> tuple[MigDeviceListing, ...]:
        lib, handle = self._lib, self._handle(index)
        # NVML numbers possible devices; it answers "not found" for one that does not exist.
        most = self._call_optional(lib.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        devices = []
        for number in range(most):
            device = self._call_optional(lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if device is not None:
                devices.append(self._mig_device(device))
        return tuple(devices)

    def gpu_instances(self, index: int) -> tuple[GpuInstanceListing, ...]:
        """Untested on hardware."""
        lib, handle = self._lib, self._handle(index)
        by_id = {}
        for info in self._profiles(handle):
            instances = (lib.c_nvmlGpuInstance_t * max(1, info.instanceCount))()
            count = c_uint(0)
            self._call(lib.nvmlDeviceGetGpuInstances, handle, info.id, instances, byref(count))
            for instance in instances[: count.value]:
                item = self._gpu_instance(instance, info)
                by_id[item.id] = item
        return tuple(sorted(by_id.values(), key=lambda item: (item.start, item.id)))

    def processes(self, index: int) -> tuple[int, ...]:
        return pids(self.placed_processes(index))

    def placed_processes(self, index: int) -> tuple[GpuProcess, ...]:
        lib, handle = self._lib, self._handle(index)
        handles = [(handle, None)]
        for number in range(self._call_optional(lib.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            device = self._call_optional(lib.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if device is not None:
                handles.append((device, self._call_optional(lib.nvmlDeviceGetGpuInstanceId, device)))
        # A GPU in MIG mode lists its instances' processes only to administrators: query each instance too.
        return sorted_processes(
            (int(process.pid), _instance_of(process) if place is None else place)
            for item, place in handles
            for process in self._call(lib.nvmlDeviceGetComputeRunningProcesses, item)
        )

    def state(self, index: int) -> GpuState:
        lib, handle = self._lib, self._handle(index)
        power = self._call_optional(lib.nvmlDeviceGetPowerUsage, handle)
        bits = self._call_optional(lib.nvmlDeviceGetCurrentClocksEventReasons, handle)
        busy = self._call_optional(lib.nvmlDeviceGetUtilizationRates, handle)
        memory = self._call_optional(lib.nvmlDeviceGetMemoryInfo, handle)
        return GpuState(
            sm_clock_mhz=self._call_optional(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_SM),
            max_sm_clock_mhz=self._call_optional(lib.nvmlDeviceGetMaxClockInfo, handle, lib.NVML_CLOCK_SM),
            temperature_c=self._call_optional(lib.nvmlDeviceGetTemperature, handle, lib.NVML_TEMPERATURE_GPU),
            power_w=None if power is None else power / 1000,
            throttled_by=None
            if bits is None
            else tuple(words for name, words in _REASONS.items() if bits & getattr(lib, name)),
            memory_used_bytes=None if memory is None else int(memory.used),
            busy_percent=None if busy is None else int(busy.gpu),
        )

    def create_gpu_instance(self, index: int, profile_id: int, start: int, size: int) -> int:
        """Untested on hardware."""
        lib = self._lib
        placement = byref(lib.c_nvmlGpuInstancePlacement_t(start=start, size=size))
        made = self._call(
            lib.nvmlDeviceCreateGpuInstanceWithPlacement, self._handle(index), profile_id, placement
        )
        return int(self._call(lib.nvmlGpuInstanceGetInfo, made).id)

    def create_compute_instance(self, index: int, gpu_instance_id: int) -> int:
        """Untested on hardware."""
        lib, handle = self._lib, self._handle(index)
        instance = self._call(lib.nvmlDeviceGetGpuInstanceById, handle, gpu_instance_id)
        profile_id = self._call(lib.nvmlGpuInstanceGetInfo, instance).profileId
        slices = next(info.sliceCount for info in self._profiles(handle) if info.id == profile_id)
        for profile in self._compute_profiles(instance):
            if profile.sliceCount == slices:
                made = self._call(lib.nvmlGpuInstanceCreateComputeInstance, instance, profile.id)
                return int(self._call(lib.nvmlComputeInstanceGetInfo, made).id)
        raise NvmlFault("not_supported", f"no compute instance profile of {slices} slices")

    def destroy_compute_instance(self, index: int, gpu_instance_id: int, compute_instance_id: int) -> None:
        """Untested on hardware."""
        lib = self._lib
        instance = self._call(lib.nvmlDeviceGetGpuInstanceById, self._handle(index), gpu_instance_id)
        self._call(
            lib.nvmlComputeInstanceDestroy,
            self._call(lib.nvmlGpuInstanceGetComputeInstanceById, instance, compute_instance_id),
        )

    def destroy_gpu_instance(self, index: int, gpu_instance_id: int) -> None:
        """Untested on hardware."""
        lib = self._lib
        instance = self._call(lib.nvmlDeviceGetGpuInstanceById, self._handle(index), gpu_instance_id)
        self._call(lib.nvmlGpuInstanceDestroy, instance)

    def set_mig_mode(self, index: int, is_on: bool) -> None:
        """Untested on hardware. Whether it took effect at once is for the listing to say."""
        self._call(self._lib.nvmlDeviceSetMigMode, self._handle(index), int(is_on))

    def reset_gpu(self, index: int) -> None:
        """By nvidia-smi, since the library has no call for it. Untested on hardware."""
        import subprocess

        command = ["nvidia-smi", "--gpu-reset", "-i", self.gpu(index).uuid]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=RESET_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NvmlFault("other", f"{' '.join(command)} did not run: {error}") from error
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            kind: NvmlKind = "in_use" if "in use" in said.lower() else "other"
            raise NvmlFault(kind, f"{' '.join(command)} says: {said}")

    def _handle(self, index: int) -> Any:
        return self._call(self._lib.nvmlDeviceGetHandleByIndex, index)

    def _memory(self, handle: Any) -> int | None:
        memory = self._call_optional(self._lib.nvmlDeviceGetMemoryInfo, handle)
        return None if memory is None else int(memory.total)

    def _mig_device(self, device: Any) -> MigDeviceListing:
        lib = self._lib
        name = _text(self._call(lib.nvmlDeviceGetName, device))
        attributes = self._call_optional(lib.nvmlDeviceGetAttributes_v2, device)
        return MigDeviceListing(
            uuid=_text(self._call(lib.nvmlDeviceGetUUID, device)),
            name=name,
            profile=profile_of(name),
            gpu_instance_id=self._call_optional(lib.nvmlDeviceGetGpuInstanceId, device),
            compute_instance_id=self._call_optional(lib.nvmlDeviceGetComputeInstanceId, device),
            memory_bytes=self._memory(device),
            sm_count=None if attributes is None else attributes.multiprocessorCount,
        )

    def _profiles(self, handle: Any) -> list[Any]:
        """The GPU instance profiles of this GPU, with their names."""
        lib = self._lib
        infos = (
            self._call_optional(lib.nvmlDeviceGetGpuInstanceProfileInfo, handle, number)
            for number in range(lib.NVML_GPU_INSTANCE_PROFILE_COUNT)
        )
        return [info for info in infos if info is not None]

    def _compute_profiles(self, instance: Any) -> list[Any]:
        lib = self._lib
        shared = lib.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        infos = (
            self._call_optional(lib.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, number, shared)
            for number in range(lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT)
        )
        return [info for info in infos if info is not None]

    def _gpu_instance(self, instance: Any, profile: Any) -> GpuInstanceListing:
        lib = self._lib
        info = self._call(lib.nvmlGpuInstanceGetInfo, instance)
        computing = {}
        for kind in self._compute_profiles(instance):
            made = (lib.c_nvmlComputeInstance_t * max(1, kind.instanceCount))()
            count = c_uint(0)
            self._call(lib.nvmlGpuInstanceGetComputeInstances, instance, kind.id, made, byref(count))
            for item in made[: count.value]:
                number = int(self._call(lib.nvmlComputeInstanceGetInfo, item).id)
                computing[number] = ComputeInstanceListing(number, kind.sliceCount == profile.sliceCount)
        return GpuInstanceListing(
            id=int(info.id),
            profile_id=int(info.profileId),
            profile=_text(profile.name).removeprefix("MIG ").strip(),
            start=int(info.placement.start),
            size=int(info.placement.size),
            compute_instances=tuple(computing[number] for number in sorted(computing)),
        )

    def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the library; its errors become NvmlFault with the driver's message."""
        try:
            return call(*arguments)
        except self._lib.NVMLError as error:
            raise _fault(self._lib, error) from error
        except self._lib.NVMLLibraryMismatchError as error:  # a driver older than the call
            raise NvmlFault("not_supported", str(error)) from error

    def _call_optional(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """The answer, or None if this GPU or driver does not support the call. A lost GPU is still a fault."""
        try:
            return self._call(call, *arguments)
        except NvmlFault as fault:
            if fault.kind in ("lost", "no_driver"):
                raise
            return None


@contextmanager
def open_driver() -> Iterator[DriverNvml]:
    """A session with the driver's library. Raises NvmlFault of kind "no_driver" if there is none."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlFault(
            "no_driver", "the NVIDIA management library for Python (nvidia-ml-py) is not installed"
        ) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        words = f"the NVIDIA driver is not here or does not answer ({error})"
        raise NvmlFault("no_driver", words) from error
    try:
        yield DriverNvml(pynvml)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _fault(lib: Any, error: Any) -> NvmlFault:
    code = getattr(error, "value", None)
    for name, kind in _KINDS.items():
        if code is not None and code == getattr(lib, name, None):
            return NvmlFault(kind, str(error))
    return NvmlFault("other", str(error))


def _instance_of(process: Any) -> int | None:
    """The GPU instance of a process; NVML writes all ones where there is none, old drivers have no field."""
    number = getattr(process, "gpuInstanceId", None)
    return None if number is None or number == 0xFFFFFFFF else int(number)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
