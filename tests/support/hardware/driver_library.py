"""A stand-in for the driver's C library that answers pynvml from a replayed listing.

pynvml itself is the real one: it passes handles, structures and pointers as it does to a driver, and a
wrong name, structure or argument order fails here. What a driver does beyond its reference is not tested.
"""

from collections.abc import Callable
from ctypes import POINTER, c_void_p, cast
from typing import Any

import pynvml
import pytest

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.nvml import GpuInstanceListing, NvmlFault
from torchsplit_core.hardware.replay import ReplayNvml
from torchsplit_core.values import SliceProfile

SUCCESS = pynvml.NVML_SUCCESS
CODES = {
    "no_permission": pynvml.NVML_ERROR_NO_PERMISSION, "not_supported": pynvml.NVML_ERROR_NOT_SUPPORTED,
    "not_found": pynvml.NVML_ERROR_NOT_FOUND, "in_use": pynvml.NVML_ERROR_IN_USE,
    "no_room": pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES, "lost": pynvml.NVML_ERROR_GPU_IS_LOST,
    "other": pynvml.NVML_ERROR_INVALID_ARGUMENT,
}  # fmt: skip
# What a handle points to: no memory is ever read there. Kind, GPU, instance and part as decimal digits.
GPU, MIG, INSTANCE, COMPUTE = 1, 2, 3, 4
REASONS = {"power cap": pynvml.nvmlClocksEventReasonSwPowerCap}


def handle(kind: int, gpu: int, instance: int = 0, part: int = 0) -> c_void_p:
    return c_void_p(((kind * 100 + gpu) * 100 + instance) * 10 + part)


def parts(pointer: Any) -> tuple[int, int, int, int]:
    number = cast(pointer, c_void_p).value
    assert number is not None
    return number // 100_000, number // 1000 % 100, number // 10 % 100, number % 10


class DriverLibrary:
    """The functions of libnvidia-ml that the seam uses, each named as the library names it."""

    def __init__(self, replay: ReplayNvml) -> None:
        self.replay = replay
        self.sessions = 0
        self.divided: set[int] = set()  # GPU instances whose compute instance takes one slice of them
        self.pending_off = False
        self.lost_memory = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return _coded(found) if name.startswith("nvml") else found

    def nvmlInitWithFlags(self, flags: Any) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self, text: Any, length: Any) -> None:
        text.value = b"570.124.06"

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> None:
        version._obj.value = 12080

    def nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = self.replay.gpu_count()

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> None:
        self.replay.gpu(index.value)
        _point(device, handle(GPU, index.value))

    def nvmlDeviceGetName(self, device: Any, text: Any, length: Any) -> None:
        text.value = self._device(device).name.encode()

    def nvmlDeviceGetUUID(self, device: Any, text: Any, length: Any) -> None:
        text.value = self._device(device).uuid.encode()

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> None:
        if self.lost_memory:
            raise NvmlFault("lost", "")
        memory._obj.total = self._device(device).memory_bytes
        if parts(device)[0] == GPU:
            memory._obj.used = self.replay.state(parts(device)[1]).memory_used_bytes or 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> None:
        rates._obj.gpu = _known(self.replay.state(parts(device)[1]).busy_percent)

    def nvmlDeviceGetPciInfo_v3(self, device: Any, info: Any) -> None:
        info._obj.pciDeviceId = int(self._device(device).pci_device_id, 16)

    def nvmlDeviceGetMigMode(self, device: Any, current: Any, pending: Any) -> None:
        gpu = self._device(device)
        if gpu.mig_current is None:
            raise NvmlFault("not_supported", "")
        current._obj.value = int(gpu.mig_current)
        pending._obj.value = int(gpu.mig_pending and not self.pending_off)

    def nvmlDeviceGetMaxMigDeviceCount(self, device: Any, count: Any) -> None:
        count._obj.value = 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: Any, index: Any, made: Any) -> None:
        gpu = parts(device)[1]
        if index.value >= len(self.replay.mig_devices(gpu)):
            raise NvmlFault("not_found", "")
        _point(made, handle(MIG, gpu, index.value))

    def nvmlDeviceGetAttributes_v2(self, device: Any, attributes: Any) -> None:
        attributes._obj.multiprocessorCount = self._device(device).sm_count

    def nvmlDeviceGetGpuInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._device(device).gpu_instance_id

    def nvmlDeviceGetComputeInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._device(device).compute_instance_id

    def nvmlDeviceGetComputeRunningProcesses_v3(self, device: Any, count: Any, processes: Any) -> None:
        kind, gpu, _, _ = parts(device)
        running = self.replay.placed_processes(gpu) if kind == GPU else ()
        room = count._obj.value
        count._obj.value = len(running)
        if len(running) > room:
            raise NvmlFault("other", "insufficient size")
        for index, process in enumerate(running):
            processes[index].pid = process.pid
            place = process.gpu_instance_id
            processes[index].gpuInstanceId = 0xFFFFFFFF if place is None else place

    def nvmlDeviceGetClockInfo(self, device: Any, kind: Any, clock: Any) -> None:
        assert kind.value == pynvml.NVML_CLOCK_SM
        clock._obj.value = _known(self.replay.state(parts(device)[1]).sm_clock_mhz)

    def nvmlDeviceGetMaxClockInfo(self, device: Any, kind: Any, clock: Any) -> None:
        assert kind.value == pynvml.NVML_CLOCK_SM
        clock._obj.value = _known(self.replay.state(parts(device)[1]).max_sm_clock_mhz)

    def nvmlDeviceGetTemperature(self, device: Any, sensor: Any, temperature: Any) -> None:
        assert sensor.value == pynvml.NVML_TEMPERATURE_GPU
        temperature._obj.value = _known(self.replay.state(parts(device)[1]).temperature_c)

    def nvmlDeviceGetPowerUsage(self, device: Any, power: Any) -> None:
        power._obj.value = round(_known(self.replay.state(parts(device)[1]).power_w) * 1000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: Any, reasons: Any) -> None:
        words = _known(self.replay.state(parts(device)[1]).throttled_by)
        # A GPU that is idle says so too, and that throttles nothing.
        reasons._obj.value = pynvml.nvmlClocksEventReasonGpuIdle | sum(REASONS[word] for word in words)

    def nvmlDeviceGetGpuInstanceProfileInfoV(self, device: Any, number: int, info: Any) -> None:
        profiles = self._profiles(device)
        if number >= len(profiles):
            raise NvmlFault("not_supported", "")
        profile, found = profiles[number], info._obj
        found.id, found.sliceCount, found.instanceCount = (
            profile.profile_id, profile.compute_slices, profile.max_instances,
        )  # fmt: skip
        found.name = f"MIG {profile.name}".encode()

    def nvmlDeviceGetGpuInstances(self, device: Any, profile_id: int, made: Any, count: Any) -> None:
        gpu = parts(device)[1]
        found = [item for item in self.replay.gpu_instances(gpu) if item.profile_id == profile_id]
        count._obj.value = len(found)
        for index, item in enumerate(found):
            made[index] = cast(handle(INSTANCE, gpu, item.id), pynvml.c_nvmlGpuInstance_t)

    def nvmlDeviceGetGpuInstanceById(self, device: Any, number: int, made: Any) -> None:
        gpu = parts(device)[1]
        self._instance(gpu, number)
        _point(made, handle(INSTANCE, gpu, number))

    def nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> None:
        item, found = self._instance(*parts(instance)[1:3]), info._obj
        found.id, found.profileId = item.id, item.profile_id
        found.placement.start, found.placement.size = item.start, item.size

    def nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        self, instance: Any, number: int, engine: int, info: Any
    ) -> None:
        slices = self._slices(instance)
        # The driver's profiles count slices from one; those larger than the instance do not exist in it.
        if engine != pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED or number >= slices:
            raise NvmlFault("not_supported", "")
        info._obj.id, info._obj.sliceCount, info._obj.instanceCount = (
            number, number + 1, slices // (number + 1),
        )  # fmt: skip

    def nvmlGpuInstanceGetComputeInstances(self, instance: Any, profile: int, made: Any, count: Any) -> None:
        _, gpu, number, _ = parts(instance)
        slices = 1 if number in self.divided else self._slices(instance)
        found = self._instance(gpu, number).compute_instances if profile + 1 == slices else ()
        count._obj.value = len(found)
        for index, item in enumerate(found):
            made[index] = cast(handle(COMPUTE, gpu, number, item.id), pynvml.c_nvmlComputeInstance_t)

    def nvmlGpuInstanceGetComputeInstanceById(self, instance: Any, number: int, made: Any) -> None:
        _, gpu, one, _ = parts(instance)
        _point(made, handle(COMPUTE, gpu, one, number))

    def nvmlComputeInstanceGetInfo_v2(self, compute: Any, info: Any) -> None:
        info._obj.id = parts(compute)[3]

    def nvmlDeviceCreateGpuInstanceWithPlacement(
        self, device: Any, profile_id: int, placement: Any, made: Any
    ) -> None:
        gpu, where = parts(device)[1], placement._obj
        assert isinstance(where, pynvml.c_nvmlGpuInstancePlacement_t)
        number = self.replay.create_gpu_instance(gpu, profile_id, where.start, where.size)
        _point(made, handle(INSTANCE, gpu, number))

    def nvmlGpuInstanceCreateComputeInstance(self, instance: Any, profile: int, made: Any) -> None:
        _, gpu, number, _ = parts(instance)
        assert profile + 1 == self._slices(instance), "not the compute instance that takes all of it"
        part = self.replay.create_compute_instance(gpu, number)
        _point(made, handle(COMPUTE, gpu, number, part))

    def nvmlComputeInstanceDestroy(self, compute: Any) -> None:
        _, gpu, number, part = parts(compute)
        self.replay.destroy_compute_instance(gpu, number, part)

    def nvmlGpuInstanceDestroy(self, instance: Any) -> None:
        self.replay.destroy_gpu_instance(*parts(instance)[1:3])

    def _device(self, device: Any) -> Any:
        kind, gpu, number, _ = parts(device)
        return self.replay.gpu(gpu) if kind == GPU else self.replay.mig_devices(gpu)[number]

    def _profiles(self, device: Any) -> tuple[SliceProfile, ...]:
        from torchsplit_core.hardware.discovery import read_gpu

        known = read_gpu(self.replay, parts(device)[1]).gpu_type
        return gpu_type(known).profiles if known else ()

    def _instance(self, gpu: int, number: int) -> GpuInstanceListing:
        for item in self.replay.gpu_instances(gpu):
            if item.id == number:
                return item
        raise NvmlFault("not_found", "")

    def _slices(self, instance: Any) -> int:
        _, gpu, number, _ = parts(instance)
        wanted = self._instance(gpu, number).profile_id
        return next(p.compute_slices for p in self._profiles(handle(GPU, gpu)) if p.profile_id == wanted)


def install(monkeypatch: pytest.MonkeyPatch, replay: ReplayNvml) -> DriverLibrary:
    """Let pynvml find this library instead of the driver's."""
    library = DriverLibrary(replay)
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return library


def _coded(function: Callable[..., None]) -> Callable[..., int]:
    """As C functions answer: a code, never an exception."""

    def call(*arguments: Any) -> int:
        try:
            function(*arguments)
        except NvmlFault as fault:
            if fault.words == "insufficient size":
                return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
            return int(CODES[fault.kind])
        return int(SUCCESS)

    return call


def _point(reference: Any, target: c_void_p) -> None:
    """Write a handle where a reference points, as a C function does."""
    pointer = reference._obj
    cast(reference, POINTER(c_void_p))[0] = target.value
    assert parts(pointer) == parts(target)


def _known(value: Any) -> Any:
    if value is None:
        raise NvmlFault("not_supported", "")
    return value
