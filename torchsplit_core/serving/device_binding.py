"""Binds the slices of a plan to devices of this host: cores, MIG instances, whole GPUs, or stand-ins."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from torchsplit_core.deployment.hosts import Host, HostGpu, group_by_host
from torchsplit_core.hardware import (
    HostReport,
    available_devices,
    choose_devices,
    discover_host,
    gpu_type,
    profile_cores,
)
from torchsplit_core.serving.plan import BoundSlice
from torchsplit_core.serving.settings import StandIn
from torchsplit_core.values import Device, InputFault, PlannedSlice, PlanOutcome, profile_words

MOST_LISTED = 3
"""Kinds of missing slices that a message names."""

STAND_IN_HINT = (
    "Run it where they are; or add --stand-in cpu, which runs every slice on cores of this host "
    "(the answers are the same, the times are not the plan's)."
)
SM_STAND_IN_HINT = " --stand-in sm emulates MIG slices by numbers of SMs of the whole GPUs here."


def bind_slices(
    outcome: PlanOutcome,
    stand_in: StandIn = "none",
    *,
    report: HostReport | None = None,
    cores: Iterable[int] | None = None,
) -> tuple[BoundSlice, ...]:
    """Bind every slice of the plan to a device here (`report` and `cores`: default this machine's).

    Raises InputFault that names the slices this host lacks and what could stand in for them.
    """
    hosts = group_by_host(outcome)
    report = report or discover_host()
    allowed = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if stand_in == "cpu":
        return tuple(_bind_round_robin(hosts, report, allowed))
    if len(hosts) > 1:
        raise InputFault(
            "the plan",
            f"is of {len(hosts)} hosts ({', '.join(host.display_name for host in hosts)}), and one is served at a time",
            f"Deploy it (torchsplit deploy). {STAND_IN_HINT}",
        )
    bound_slices: list[BoundSlice] = []
    missing: list[str] = []
    devices = list(available_devices(report))
    free = list(devices)
    next_core = 0
    for gpu in hosts[0].gpus:
        if gpu.is_cpu:
            count = gpu_type(gpu.type).memory_slices
            host_cores, next_core = allowed[next_core : next_core + count], next_core + count
            if len(host_cores) < max(item.start + (profile_cores(item.profile) or 0) for item in gpu.slices):
                missing.append(f"{gpu.id}, a host of {count} cores (this process has {len(allowed)})")
                continue
        for item in gpu.slices:
            if gpu.is_cpu:
                count = profile_cores(item.profile) or 0
                chosen = tuple(host_cores[item.start : item.start + count])
                bound_slices.append(_bound(gpu, item, _cores_device(count, report), chosen))
                continue
            device = _emulate_slice(gpu, item, report) if stand_in == "sm" else _claim_device(gpu, item, free)
            if device is None:
                missing.append(f"{gpu.id} {gpu.type}: {profile_words(item.profile)}")
            else:
                bound_slices.append(_bound(gpu, item, device))
    if missing:
        present = ", ".join(f"{device.id} ({device.profile or device.name})" for device in devices)
        has_gpu = any(device.kind == "cuda" for device in devices)
        raise InputFault(
            "the plan",
            f"has slices that this host lacks: {_format_first(_format_counts(missing))}. "
            f"It has {present or 'no devices'}. {report.message.rstrip('.')}",
            STAND_IN_HINT + (SM_STAND_IN_HINT if has_gpu else ""),
        )
    return tuple(bound_slices)


def bind_cores(count: int, *, report: HostReport | None = None) -> BoundSlice:
    """The first so many cores of this process as a slice. Raises InputFault if it has fewer."""
    report, allowed = report or discover_host(), sorted(os.sched_getaffinity(0))
    if count > len(allowed):
        raise InputFault(
            "--device", f"names {count} cores, and this process has {len(allowed)}", "Name fewer cores."
        )
    device = _cores_device(count, report)
    return BoundSlice(f"host/{count}c@0", "host", f"{count}c", 0, device, tuple(allowed[:count]))


def _format_counts(names: Iterable[str]) -> list[str]:
    return [f"{count} × {name}" if count > 1 else name for name, count in Counter(names).items()]


def _format_first(names: list[str]) -> str:
    """The first names and the number of the rest."""
    more = len(names) - MOST_LISTED
    return "; ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _bound(gpu: HostGpu, item: PlannedSlice, device: Device, cores: tuple[int, ...] = ()) -> BoundSlice:
    slice_id = f"{gpu.id}/{item.profile or 'whole'}@{item.start}"
    return BoundSlice(slice_id, gpu.id, item.profile, item.start, device, cores)


def _cores_device(count: int, report: HostReport) -> Device:
    """A device of so many of this host's cores, with their part of its memory."""
    memory_gib = None if report.memory_gib is None else report.memory_gib * count / report.cpu_cores
    return Device(
        "cpu", f"cpu:{count}c", f"{count} of the cores of {report.cpu_name}", "CPU", f"{count}c", "cpu",
        None, None, None, memory_gib,
    )  # fmt: skip


def _bind_round_robin(hosts: Iterable[Host], report: HostReport, allowed: list[int]) -> Iterator[BoundSlice]:
    """Bind slices to cores in turn: one core for a GPU slice, as many as it has for a slice of cores."""
    offset = 0
    slices = [(gpu, item) for host in hosts for gpu in host.gpus for item in gpu.slices]
    for gpu, item in slices:
        count = min(profile_cores(item.profile) or 1, len(allowed))
        chosen = {allowed[(offset + index) % len(allowed)] for index in range(count)}
        offset += count
        yield _bound(gpu, item, _cores_device(count, report), tuple(sorted(chosen)))


def _claim_device(gpu: HostGpu, item: PlannedSlice, free: list[Device]) -> Device | None:
    """Take a free device of this type and profile, preferably on the GPU with the plan's index."""
    wanted = ("mig" if item.profile else "cuda", gpu.type, item.profile or None)
    fitting = [device for device in free if (device.kind, device.gpu_type, device.profile) == wanted]
    claimed = min(fitting, key=lambda device: device.gpu_index != gpu.index, default=None)
    if claimed is not None:
        free.remove(claimed)
    return claimed


def _emulate_slice(gpu: HostGpu, item: PlannedSlice, report: HostReport) -> Device | None:
    """A whole GPU of that type, limited to the SMs of a MIG slice. Untested on hardware."""
    chosen = _claim_device(gpu, replace(item, profile=""), list(available_devices(report)))
    if chosen is None or not item.profile:
        return chosen
    return choose_devices(f"sm:{item.profile}@{chosen.gpu_index}", report)[0]
