"""The device in the measuring child: its torch device, limits and facts.

A process that may not create MIG slices can still be limited to a number of SMs by a green context (torch 2.10 or
later, beta). Its memory is capped to the slice's; bandwidth and cache are not, so memory-bound models come out too
fast. Everything here but the processor is untested on hardware.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchsplit_core.hardware.cuda_causes import HOLDERS_HINT, cuda_facts, cuda_fault
from torchsplit_core.values import InputFault
from torchsplit_core.values.units import GIB

RESOURCE_SM = 1
"""CU_DEV_RESOURCE_TYPE_SM of the CUDA driver API (cuda.h)."""
RESOURCE_BYTES, SM_COUNT_OFFSET = 512, 96
"""CUdevResource: a type of 4 bytes, 92 of padding, then smCount (cuda.h), with room for later versions."""


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """The torch device of the child, and facts for the profile's environment."""

    torch_device: str
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@contextmanager
def open_device(device: Mapping[str, Any]) -> Iterator[OpenedDevice]:
    """The device of a `values.Device` as JSON, with its limits while it is open.

    Raises InputFault with the cause if CUDA cannot be used or another process occupies the device.
    """
    if device["kind"] == "cpu":
        with _limit_cores(device) as limits:
            yield OpenedDevice("cpu", {"threads": torch.get_num_threads(), **limits})
        return
    if not torch.cuda.is_available():
        raise cuda_fault(cuda_facts(torch.version.cuda, device), device["id"])
    _create_cuda_context(device)
    facts: dict[str, str | int | float | bool] = {
        "cuda": str(torch.version.cuda),
        "torch_device_name": torch.cuda.get_device_name(),
        "sm_count": torch.cuda.get_device_properties(0).multi_processor_count,
    }
    if device["kind"] != "sm":
        yield OpenedDevice("cuda", facts)
        return
    with _limit_sms(device) as limits:
        yield OpenedDevice("cuda", facts | limits)


@contextmanager
def _limit_cores(device: Mapping[str, Any]) -> Iterator[dict[str, str | int | float | bool]]:
    """Limit every thread of this process to the first K of its cores, and torch to K threads; undone at the end."""
    if device["profile"] is None:
        yield {}
        return
    core_count = int(str(device["profile"]).removesuffix("c"))
    allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
    if core_count > len(allowed):
        raise InputFault(
            f"device {device['id']}",
            f"has {core_count} cores, of which this process may use {len(allowed)}",
            f"Use cpu:{len(allowed)}c or fewer.",
        )
    chosen = sorted(allowed)[:core_count]
    _set_affinity(chosen)
    torch.set_num_threads(core_count)
    try:
        yield {"threads": core_count, "cores": ",".join(map(str, chosen))}
    finally:
        torch.set_num_threads(threads)
        _set_affinity(allowed)


def _set_affinity(cores: Iterable[int]) -> None:
    """Existing threads (torch's pools) are set one by one; new ones inherit their parent's cores."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def _create_cuda_context(device: Mapping[str, Any]) -> None:
    """Create CUDA's context, which a device in exclusive mode refuses to a second process."""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "busy or unavailable" not in str(error):
            raise
        raise InputFault(
            f"device {device['id']}",
            "is in use: CUDA lets no second process compute on it",
            f"Wait for what nvidia-smi lists, or set its compute mode to default (nvidia-smi -c 0). {HOLDERS_HINT}",
        ) from error


@contextmanager
def _limit_sms(device: Mapping[str, Any]) -> Iterator[dict[str, str | int | float | bool]]:
    """A green context of that many SMs and a memory cap; yields what was requested and obtained."""
    from torch.cuda import green_contexts

    if not green_contexts.SUPPORTED:
        raise InputFault(
            f"device {device['id']}",
            f"needs green contexts, which torch {torch.__version__} was built without (CUDA 12.8 or later has them)",
            "Install a newer CUDA build of torch, or measure the whole GPU.",
        )
    requested_sms = int(device["sm_count"])
    context = green_contexts.GreenContext.create(num_sms=requested_sms, device_id=0)
    facts: dict[str, str | int | float | bool] = {"sm_asked": requested_sms}
    if device["memory_gib"]:
        total = torch.cuda.get_device_properties(0).total_memory
        share = min(1.0, device["memory_gib"] * GIB / total)
        torch.cuda.set_per_process_memory_fraction(share)
        facts["memory_cap_gib"] = device["memory_gib"]
    context.set_context()
    try:
        count = sms_of_context()
        facts |= {"sm_count": count} if count else {"sm_count_note": "the driver did not tell the count"}
        yield facts
    finally:
        context.pop_context()


def sms_of_context(driver: Any = None) -> int | None:
    """The SMs of this thread's current CUDA context, read from the driver; None if it does not report them.

    torch has no call for this: cuCtxGetCurrent and cuCtxGetDevResource of the driver API (CUDA 12.4 or later).
    """
    try:
        library = driver or ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        if library.cuCtxGetCurrent(ctypes.byref(context)) != 0:
            return None
        resource = ctypes.create_string_buffer(RESOURCE_BYTES)
        if library.cuCtxGetDevResource(context, resource, RESOURCE_SM) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return int.from_bytes(resource.raw[SM_COUNT_OFFSET : SM_COUNT_OFFSET + 4], "little") or None
