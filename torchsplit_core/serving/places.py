"""Where the slices of a plan are on this host: cores, MIG instances by UUID, whole GPUs, or what stands in for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

from torchsplit_core.deployment.hosts import Host, HostGpu, hosts_of
from torchsplit_core.hardware import (
    HostReport,
    available_devices,
    choose_devices,
    discover_host,
    gpu_type,
    profile_cores,
)
from torchsplit_core.serving.roster import SlicePlace
from torchsplit_core.serving.settings import StandIn
from torchsplit_core.values import Device, InputFault, PlannedSlice, PlanOutcome, profile_words

MOST_LISTED = 3
"""Kinds of slices that a message names."""

OFFER = (
    "Run it where they are; or add --stand-in cpu, which runs every slice on cores of this host "
    "(the answers are the same, the times are not the plan's)."
)
SM_OFFER = " --stand-in sm emulates MIG slices by numbers of SMs of the whole GPUs here."


def find_places(
    outcome: PlanOutcome,
    stand_in: StandIn = "none",
    *,
    report: HostReport | None = None,
    cores: Iterable[int] | None = None,
) -> tuple[SlicePlace, ...]:
    """Every slice of the plan with its device here (`report` and `cores`: default this machine's).

    Raises InputFault that names all slices that are not here, and what could stand in for them.
    """
    hosts = hosts_of(outcome)
    report = report or discover_host()
    allowed = sorted(os.sched_getaffinity(0) if cores is None else cores)
    if stand_in == "cpu":
        return tuple(_on_cores_in_turn(hosts, report, allowed))
    if len(hosts) > 1:
        raise InputFault(
            "the plan",
            f"is of {len(hosts)} hosts ({', '.join(host.shown for host in hosts)}), and one is served at a time",
            f"Deploy it (torchsplit deploy). {OFFER}",
        )
    places: list[SlicePlace] = []
    missing: list[str] = []
    free = list(available_devices(report))
    next_core = 0
    for gpu in hosts[0].gpus:
        if gpu.cores:
            count = gpu_type(gpu.type).memory_slices
            own, next_core = allowed[next_core : next_core + count], next_core + count
            if len(own) < max(item.start + (profile_cores(item.profile) or 0) for item in gpu.slices):
                missing.append(f"{gpu.id}, a host of {count} cores (this process has {len(allowed)})")
                continue
            places += [_cores_of(gpu, item, report, own) for item in gpu.slices]
            continue
        for item in gpu.slices:
            device = _emulated(gpu, item, report) if stand_in == "sm" else _taken(gpu, item, free)
            if device is None:
                missing.append(f"{gpu.id} {gpu.type}: {profile_words(item.profile)}")
            else:
                places.append(SlicePlace(_id(gpu, item), gpu.id, item.profile, item.start, device))
    if missing:
        here = ", ".join(f"{one.id} ({one.profile or one.name})" for one in available_devices(report))
        whole = any(one.kind == "cuda" for one in available_devices(report))
        raise InputFault(
            "the plan",
            f"has slices that this host lacks: {_listed(_counted(missing))}. It has {here or 'no devices'}. "
            + report.message.rstrip("."),
            OFFER + (SM_OFFER if whole else ""),
        )
    return tuple(places)


def _counted(names: Iterable[str]) -> list[str]:
    return [f"{count} × {name}" if count > 1 else name for name, count in Counter(names).items()]


def _listed(names: list[str]) -> str:
    """The first ones, and how many more there are."""
    more = len(names) - MOST_LISTED
    return "; ".join(names[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _id(gpu: HostGpu, item: PlannedSlice) -> str:
    return f"{gpu.id}/{item.profile or 'whole'}@{item.start}"


def _cores_of(gpu: HostGpu, item: PlannedSlice, report: HostReport, own: list[int]) -> SlicePlace:
    """The slice on the cores that its start counts to."""
    count = profile_cores(item.profile) or 0
    chosen = tuple(own[item.start : item.start + count])
    return SlicePlace(_id(gpu, item), gpu.id, item.profile, item.start, _held_to(count, report), chosen)


def _held_to(count: int, report: HostReport) -> Device:
    """So many of this host's cores, with their part of its memory."""
    memory_gib = None if report.memory_gib is None else report.memory_gib * count / report.cpu_cores
    return Device(
        "cpu", f"cpu:{count}c", f"{count} of the cores of {report.cpu_name}", "CPU", f"{count}c", "cpu",
        None, None, None, memory_gib,
    )  # fmt: skip


def _on_cores_in_turn(hosts: Iterable[Host], report: HostReport, allowed: list[int]) -> Iterator[SlicePlace]:
    """One core a slice, the first again after the last; slices of cores keep their number as far as there are any."""
    turn = 0
    for host in hosts:
        for gpu in host.gpus:
            for item in gpu.slices:
                count = min(profile_cores(item.profile) or 1, len(allowed))
                chosen = tuple(sorted({allowed[(turn + one) % len(allowed)] for one in range(count)}))
                turn += count
                yield SlicePlace(
                    _id(gpu, item), gpu.id, item.profile, item.start, _held_to(count, report), chosen
                )


def _taken(gpu: HostGpu, item: PlannedSlice, free: list[Device]) -> Device | None:
    """The first device here that is this slice and no other has taken: on the GPU of its index, else on any of it."""
    wanted = item.profile or None
    kind = "mig" if wanted else "cuda"
    fitting = [one for one in free if (one.kind, one.gpu_type, one.profile) == (kind, gpu.type, wanted)]
    if not fitting:
        return None
    found = min(fitting, key=lambda one: one.gpu_index != gpu.index)
    free.remove(found)
    return found


def _emulated(gpu: HostGpu, item: PlannedSlice, report: HostReport) -> Device | None:
    """A whole GPU of that type, held to the slice's SMs where it is one of MIG. Untested on hardware."""
    whole = [one for one in available_devices(report) if one.kind == "cuda" and one.gpu_type == gpu.type]
    if not whole:
        return None
    chosen = min(whole, key=lambda one: one.gpu_index != gpu.index)
    if not item.profile:
        return chosen
    return choose_devices(f"sm:{item.profile}@{chosen.gpu_index}", report)[0]
