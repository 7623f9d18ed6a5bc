"""Which devices this host has, and which of them a text such as `--device mig:1g.10gb` selects.

NVML lists the cuda and MIG devices; a number of SMs can be requested on any whole GPU. Torch is not queried: whether a
CUDA program runs on a device shows only when the measurement starts there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from torchsplit_core.hardware.catalogue import catalogue, gpu_type, plain_profiles
from torchsplit_core.hardware.cuda_causes import CONTAINER_HINT, is_stale
from torchsplit_core.hardware.discovery import HostGpu, HostReport, MigInstance, discover_host
from torchsplit_core.hardware.mig_commands import slice_commands
from torchsplit_core.hardware.peaks import peak_names, peaks
from torchsplit_core.values import Device, InputFault, SliceProfile, quoted, suggestion

CPU = "CPU"
"""The gpu_type of a processor."""
DEVICE_FORMS = "auto, cpu, cuda, cuda:N, mig, mig:UUID, mig:PROFILE, sm:N, sm:PROFILE or cpu:Kc (K cores)"


def available_devices(host: HostReport) -> tuple[Device, ...]:
    """The processor, then each whole GPU and each MIG instance, in the order of the listing.

    A GPU in MIG mode is not included: a process sees only its instances, or nothing if it has none. The index N of
    cuda:N is that of nvidia-smi; `Device.uuid` identifies the GPU whatever CUDA's order is. If CUDA_VISIBLE_DEVICES
    is set, for example by a cluster's scheduler, only the devices that it names are included.
    """
    devices = [
        Device("cpu", "cpu", host.cpu_name, CPU, None, "cpu", None, None, None, host.memory_gib),
    ]
    for gpu in host.gpus:
        if gpu.mig_enabled:
            devices += [mig_device(gpu, item) for item in gpu.instances]
        else:
            devices.append(_whole(gpu))
    return tuple(device for device in devices if _is_visible(device))


def choose_devices(text: str, host: HostReport | None = None) -> tuple[Device, ...]:
    """The devices that a text selects on this host (default: as discovered now), without duplicates, in its order.

    The text is a comma-separated list of: "cpu"; "cpu:Kc", K cores; "cuda", the first whole GPU; "cuda:N"; "mig", one
    instance of each different slice of each GPU type; "mig:UUID"; "mig:PROFILE", one instance of that profile on each
    GPU type; "sm:N" and "sm:PROFILE", SMs of the first whole GPU, or of GPU M with the suffix "@M"; "auto": "cuda" if
    there is a whole GPU, else "mig" if there are instances, else "cpu".
    N SMs represent the plain profile with that count, the one with the least memory if several have it; if none has it,
    the rows are filed under "sm:N", never under a whole GPU, and memory is not capped.
    Raises InputFault that names what this host has, and the commands that would create missing slices.
    """
    host = host or discover_host()
    chosen: dict[str, Device] = {}
    for part in text.split(","):
        for device in _match_devices(part.strip(), text, host):
            chosen.setdefault(device.id, device)
    return tuple(chosen.values())


def mig_device(gpu: HostGpu, instance: MigInstance) -> Device:
    """The device of a MIG instance. SMs and memory are the driver's figures, else the catalogue's."""
    profile = _catalogue_profile(gpu, instance.profile)
    sm_count, memory_gib = instance.sm_count, instance.memory_gib
    if profile is not None:
        sm_count = profile.sm_count if sm_count is None else sm_count
        memory_gib = profile.memory_gib if memory_gib is None else memory_gib
    return Device(
        kind="mig",
        id=f"mig:{instance.uuid}",
        name=instance.name,
        gpu_type=gpu.gpu_type or gpu.name,
        # An instance without a known profile is still not a whole GPU: its rows are filed under its UUID.
        profile=instance.profile or instance.uuid,
        physical=gpu.uuid,
        gpu_index=gpu.index,
        uuid=instance.uuid,
        sm_count=sm_count,
        memory_gib=memory_gib,
    )


def _is_visible(device: Device) -> bool:
    """Whether CUDA_VISIBLE_DEVICES includes the device, by index, UUID or a prefix of one.

    As in CUDA, entries after the first invalid one are ignored. An index is taken as nvidia-smi's.
    """
    entries = os.environ.get("CUDA_VISIBLE_DEVICES")
    if entries is None or device.uuid is None:
        return True
    for entry in map(str.strip, entries.split(",")):
        if entry == str(device.gpu_index) or (entry.startswith("MIG-") and device.uuid.startswith(entry)):
            return True
        if entry.startswith("GPU-") and device.physical.startswith(entry):
            return True
        if not entry.isdecimal() and not entry.startswith(("GPU-", "MIG-")):
            return False
    return False


def _match_devices(part: str, text: str, host: HostReport) -> tuple[Device, ...]:
    kind, colon, rest = part.partition(":")
    devices = available_devices(host)
    if part == "auto":
        return _auto(devices)
    if part == "cpu":
        return devices[:1]
    if kind == "cpu" and rest:
        return (_core_device(part, rest, devices[0], host),)
    if kind not in ("cuda", "mig", "sm") or bool(colon) != bool(rest) or part == "sm":
        raise _no_device(text)
    if not host.gpus:
        raise InputFault(
            "device",
            f"{quoted(part)} is not available on this host. {host.message}",
            f"Use --device cpu. {CONTAINER_HINT}",
        )
    if kind == "cuda":
        return _cuda_devices(part, rest, devices, host)
    if kind == "mig":
        return _mig_devices(part, rest, devices, host)
    return _sm_devices(part, rest, devices, host)


def _no_device(text: str) -> InputFault:
    return InputFault("device", f"{quoted(text)} is not a device", f"Give {DEVICE_FORMS}.")


def _auto(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    whole = [device for device in devices if device.kind == "cuda"]
    return tuple(whole[:1]) or _one_of_each(devices) or devices[:1]


def _one_of_each(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The first MIG instance of each GPU type and profile."""
    first: dict[tuple[str, str | None], Device] = {}
    for device in devices:
        if device.kind == "mig":
            first.setdefault((device.gpu_type, device.profile), device)
    return tuple(first.values())


def _core_device(part: str, rest: str, whole: Device, host: HostReport) -> Device:
    """A device with some of the cores (logical processors) that this process may run on."""
    text = rest.removesuffix("c")
    if rest == text or not (text.isascii() and text.isdecimal()) or text.startswith("0"):
        raise _no_device(part)
    if not hasattr(os, "sched_setaffinity"):
        raise InputFault(
            "device",
            f"{quoted(part)} is not available: this system cannot hold a process to some cores",
            "Use --device cpu.",
        )
    available = min(host.cpu_cores, len(os.sched_getaffinity(0)))
    if len(text) > 6 or int(text) > available:
        has = "1 core" if available == 1 else f"{available} cores"
        raise InputFault(
            "device",
            f"{quoted(part)} is not available: this process may use {has}",
            f"Use cpu:{available}c or fewer.",
        )
    name = f"{text} core{'s' if text != '1' else ''} of {whole.name}"
    return replace(whole, id=f"cpu:{text}c", name=name, profile=f"{text}c")


def _cuda_devices(part: str, rest: str, devices: tuple[Device, ...], host: HostReport) -> tuple[Device, ...]:
    matches = [device for device in devices if device.kind == "cuda" and part in ("cuda", device.id)]
    if matches:
        return (matches[0],)
    if rest and not rest.isdecimal():
        raise InputFault("device", f"{quoted(part)} has no index of a GPU", _list_present(devices, host))
    in_mig = [g.index for g in host.gpus if g.mig_enabled and (not rest or g.index == int(rest))]
    if in_mig:
        why = f": GPU {in_mig[0]} is in MIG mode, where CUDA sees only instances"
        raise InputFault("device", f"{quoted(part)} is not available{why}", _list_present(devices, host))
    raise InputFault("device", f"{quoted(part)} is not available on this host", _list_present(devices, host))


def _mig_devices(part: str, rest: str, devices: tuple[Device, ...], host: HostReport) -> tuple[Device, ...]:
    if rest.startswith("MIG-"):
        matches = tuple(device for device in devices if device.id == part)
        remedy = f"An instance that is made anew may get another UUID. {_list_present(devices, host)}"
    else:
        matches = tuple(d for d in _one_of_each(devices) if not rest or d.profile == rest)
        remedy = f"{_list_present(devices, host)} {_how_to_make(rest, host)}"
    if not matches:
        raise InputFault("device", f"{quoted(part)} is not available on this host", remedy)
    return matches


def _how_to_make(profile: str, host: HostReport) -> str:
    """The commands that would create that slice, or the smallest one if `profile` is empty."""
    # Prefer the GPU that is disturbed least: one in MIG mode without instances first, one with instances last.
    order = sorted(host.gpus, key=lambda gpu: (len(gpu.instances), not gpu.mig_enabled, gpu.index))
    for gpu in order:
        if gpu.gpu_type is None or gpu.mig_enabled is None:
            continue
        kind = gpu_type(gpu.gpu_type)
        smallest = min(plain_profiles(kind), key=lambda item: (item.compute_slices, item.memory_slices))
        if not profile or profile in {item.name for item in kind.profiles}:
            return "To make one:\n" + "\n".join(slice_commands(gpu, [profile or smallest.name]))
    offered = sorted({p.name for g in host.gpus if g.gpu_type for p in plain_profiles(gpu_type(g.gpu_type))})
    if profile and offered and any(gpu.mig_enabled is not None for gpu in host.gpus):
        return f"The GPUs here can have {', '.join(offered)}."
    return "No GPU here can be cut into MIG slices: sm:N emulates one by a number of SMs."


def _sm_devices(part: str, rest: str, devices: tuple[Device, ...], host: HostReport) -> tuple[Device, ...]:
    wanted, at, number = rest.partition("@")
    whole = [device for device in devices if device.kind == "cuda"]
    first = whole[0] if whole else None
    gpu = next((d for d in whole if d.id == f"cuda:{number}"), None) if at else first
    if gpu is None:
        named = f"GPU {number} is none" if at else "this host has none"
        problem = (
            f"{quoted(part)} is not available: SMs are taken from a whole GPU outside MIG mode, and {named}"
        )
        raise InputFault("device", problem, _list_present(devices, host))
    if wanted.isdecimal():
        count = int(wanted)
        profile = _profile_by_sms(gpu, count)
    else:
        profile = _profile_by_name(part, wanted, gpu)
        count = profile.sm_count or 0
    if count < 1 or (gpu.sm_count is not None and count > gpu.sm_count):
        if count < 1:
            raise InputFault("device", f"{quoted(part)} names no SMs", "Give at least one, such as sm:16.")
        raise InputFault(
            "device", f"{quoted(part)} names more SMs than the {gpu.sm_count} of {gpu.name}", "Give fewer."
        )
    # A device has the same id however it was requested.
    usual = _profile_by_sms(gpu, count)
    label = wanted if profile is not None and profile != usual else str(count)
    home = "" if gpu is first else f"@{gpu.gpu_index}"
    return (
        Device(
            kind="sm",
            id=f"sm:{label}{home}",
            name=f"{count} SMs of {gpu.name}",
            gpu_type=gpu.gpu_type,
            profile=f"sm:{count}" if profile is None else profile.name,
            physical=gpu.physical,
            gpu_index=gpu.gpu_index,
            uuid=gpu.uuid,
            sm_count=count,
            memory_gib=None if profile is None else profile.memory_gib,
        ),
    )


def _profile_by_name(part: str, name: str, gpu: Device) -> SliceProfile:
    """The profile to emulate, which must have a known number of SMs."""
    known = catalogue()[gpu.gpu_type].profiles if gpu.gpu_type in catalogue() else ()
    counted = [profile for profile in known if profile.sm_count is not None]
    for profile in counted:
        if profile.name == name:
            return profile
    remedy = "Give a number of SMs, such as sm:16."
    if counted:
        remedy = f"{suggestion(name, [profile.name for profile in counted], 'profiles')} {remedy}"
    problem = f"{quoted(part)} names neither a number of SMs nor a known profile of {gpu.gpu_type}"
    raise InputFault("device", problem, remedy)


def _profile_by_sms(gpu: Device, count: int) -> SliceProfile | None:
    """The plain profile with that many SMs and the least memory; None if there is none."""
    if gpu.gpu_type not in catalogue():
        return None
    matches = [item for item in plain_profiles(catalogue()[gpu.gpu_type]) if item.sm_count == count]
    return min(matches, key=lambda item: (item.memory_gib or 0.0, item.name), default=None)


def _whole(gpu: HostGpu) -> Device:
    name = gpu.gpu_type or gpu.name
    return Device(
        kind="cuda",
        id=f"cuda:{gpu.index}",
        name=gpu.name,
        gpu_type=name,
        profile=None,
        physical=gpu.uuid,
        gpu_index=gpu.index,
        uuid=gpu.uuid,
        # NVML does not report the SMs of a whole GPU, so this is the datasheet's count.
        sm_count=peaks(name).sm_count if name in peak_names() else None,
        memory_gib=gpu.memory_gib,
    )


def _catalogue_profile(gpu: HostGpu, name: str | None) -> SliceProfile | None:
    if gpu.gpu_type is None or name is None:
        return None
    return next((item for item in gpu_type(gpu.gpu_type).profiles if item.name == name), None)


def _list_present(devices: tuple[Device, ...], host: HostReport) -> str:
    shown = [
        device.id if device.kind == "cpu" else f"{device.id} ({device.profile or device.name})"
        for device in devices
    ]
    bare = [f"GPU {gpu.index}" for gpu in host.gpus if gpu.mig_enabled and not gpu.instances]
    empty = f" {' and '.join(bare)} in MIG mode without any instance is no device." if bare else ""
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if limit is None else f" CUDA_VISIBLE_DEVICES={limit} hides the others, if any."
    listed = [uuid for gpu in host.gpus for uuid in (gpu.uuid, *(item.uuid for item in gpu.instances))]
    if is_stale(limit, listed):
        hidden = (
            f" CUDA_VISIBLE_DEVICES={limit} names nothing that is here: an instance that is made anew gets another "
            "UUID. Take one of nvidia-smi -L, or unset it."
        )
    return f"This host has {', '.join(shown)}.{empty}{hidden}"
