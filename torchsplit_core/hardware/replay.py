"""`Nvml` implemented by a file: a recorded listing of real GPUs, for tests and demonstrations without a GPU.

The environment variable TORCHSPLIT_NVML_REPLAY names such a file, for every process that inherits it. Created and
destroyed instances are stored in the file, so it must be writable. Profiles come from the catalogue; placements, free
slots, rights and instances in use are checked as the driver does. Ids and UUIDs of new instances differ from those
that a driver would assign.
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchsplit_core.hardware.catalogue import gpu_type, mode_needs_reset
from torchsplit_core.hardware.layouts import layout_fault
from torchsplit_core.hardware.nvml import (
    ComputeInstanceListing,
    GpuInstanceListing,
    GpuListing,
    GpuProcess,
    GpuState,
    MigDeviceListing,
    NvmlFault,
    pids,
    sorted_processes,
)
from torchsplit_core.values import GpuType, InputFault, PlacedProfile, SliceProfile, system_reason
from torchsplit_core.values.names import reject_repeated_keys
from torchsplit_core.values.units import GIB, MIB

REPLAY_VARIABLE = "TORCHSPLIT_NVML_REPLAY"
FORMAT = "torchsplit.nvml_replay"
MOST_MIB = 2**30
"""Largest memory of a GPU in a listing: 1 PiB, more than any GPU has."""


@dataclass(frozen=True, slots=True)
class ReplayNvml:
    """`Nvml` of a listing file. Every call rereads the file, because another process may have changed it.

    A file: `{"format": "torchsplit.nvml_replay", "version": 1, "source": where the listing is from,
    "permission": whether the caller is an administrator, "gpus": [{"name", "uuid", "memory_mib",
    "pci_device_id", "type": name of the catalogue or null, "mig": "on", "off" or null without MIG mode,
    "mig_pending" (may be absent): the mode after the next reset, "held" (may be absent): a reset is refused,
    "lost": fallen off the bus, "state": fields of GpuState or {}, "processes": [{"pid", "gpu_instance": id
    or null}], "instances": [{"id", "profile", "start", "compute_instance": id or null, "uuid"}]}]}`.
    Raises InputFault for a file of another form.
    """

    path: Path

    def __post_init__(self) -> None:
        self._read()

    @property
    def origin(self) -> str | None:
        return f"Replayed listing, not this machine's GPU ({self._read()['source']})."

    def gpu_count(self) -> int:
        return len(self._read()["gpus"])

    def gpu(self, index: int) -> GpuListing:
        item = _gpu(self._read(), index)
        on = None if item["mig"] is None else item["mig"] == "on"
        memory = item["memory_mib"] * MIB
        pending = item.get("mig_pending")
        next_on = on if pending is None else pending == "on"
        return GpuListing(index, item["name"], item["uuid"], memory, item["pci_device_id"], on, next_on)

    def mig_devices(self, index: int) -> tuple[MigDeviceListing, ...]:
        item = _gpu(self._read(), index)
        # The driver numbers MIG devices by GPU instance id.
        made = sorted(item["instances"], key=lambda entry: entry["id"])
        return tuple(_mig_device(item, entry) for entry in made if entry["compute_instance"] is not None)

    def gpu_instances(self, index: int) -> tuple[GpuInstanceListing, ...]:
        data = self._read()
        _check_permission(data)
        item = _gpu(data, index)
        instances = [_instance(_type(item), entry) for entry in item["instances"]]
        return tuple(sorted(instances, key=lambda entry: (entry.start, entry.id)))

    def processes(self, index: int) -> tuple[int, ...]:
        return pids(self.placed_processes(index))

    def placed_processes(self, index: int) -> tuple[GpuProcess, ...]:
        entries = _gpu(self._read(), index)["processes"]
        return sorted_processes((entry["pid"], entry["gpu_instance"]) for entry in entries)

    def state(self, index: int) -> GpuState:
        state = _gpu(self._read(), index)["state"]
        reasons = state.get("throttled_by")
        return GpuState(
            sm_clock_mhz=state.get("sm_clock_mhz"),
            max_sm_clock_mhz=state.get("max_sm_clock_mhz"),
            temperature_c=state.get("temperature_c"),
            power_w=state.get("power_w"),
            throttled_by=None if reasons is None else tuple(reasons),
            memory_used_bytes=state.get("memory_used_bytes"),
            busy_percent=state.get("busy_percent"),
        )

    def create_gpu_instance(self, index: int, profile_id: int, start: int, size: int) -> int:
        data, item = self._changeable_gpu(index)
        kind = _type(item)
        profile = next((entry for entry in kind.profiles if entry.profile_id == profile_id), None)
        if profile is None or profile.memory_slices != size:
            raise NvmlFault("other", f"Invalid Argument: no profile {profile_id} of {size} slots")
        placed = [PlacedProfile(entry["profile"], entry["start"]) for entry in item["instances"]]
        fault = layout_fault(kind, [*placed, PlacedProfile(profile.name, start)])
        if fault is not None:
            raise NvmlFault("no_room", f"Insufficient Resources: {fault}")
        taken = {entry["id"] for entry in item["instances"]}
        number = min(set(range(1, len(taken) + 2)) - taken)
        name = f"{item['uuid']}/{profile.name}:{start}/{number}"
        item["instances"].append(
            {
                "id": number,
                "profile": profile.name,
                "start": start,
                "compute_instance": None,
                "uuid": f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, name)}",
            }
        )
        self._write(data)
        return number

    def create_compute_instance(self, index: int, gpu_instance_id: int) -> int:
        data, item = self._changeable_gpu(index)
        entry = _instance_entry(item, gpu_instance_id)
        if entry["compute_instance"] is not None:
            raise NvmlFault("no_room", "Insufficient Resources: its compute slices are taken")
        entry["compute_instance"] = 0
        self._write(data)
        return 0

    def destroy_compute_instance(self, index: int, gpu_instance_id: int, compute_instance_id: int) -> None:
        data, item = self._changeable_gpu(index)
        entry = _instance_entry(item, gpu_instance_id)
        if entry["compute_instance"] != compute_instance_id:
            raise NvmlFault("not_found", "Not Found")
        if any(process["gpu_instance"] == gpu_instance_id for process in item["processes"]):
            raise NvmlFault("in_use", "In use by another client")
        entry["compute_instance"] = None
        self._write(data)

    def destroy_gpu_instance(self, index: int, gpu_instance_id: int) -> None:
        data, item = self._changeable_gpu(index)
        entry = _instance_entry(item, gpu_instance_id)
        if entry["compute_instance"] is not None:
            raise NvmlFault("in_use", "In use by another client")
        item["instances"].remove(entry)
        self._write(data)

    def set_mig_mode(self, index: int, is_on: bool) -> None:
        data = self._read()
        item = _gpu(data, index)
        _check_permission(data)
        if item["mig"] is None:
            raise NvmlFault("not_supported", "Not Supported")
        if item["instances"]:
            raise NvmlFault("in_use", "In use by another client")
        item["mig_pending" if mode_needs_reset(item["type"]) else "mig"] = "on" if is_on else "off"
        self._write(data)

    def reset_gpu(self, index: int) -> None:
        data = self._read()
        item = _gpu(data, index)
        _check_permission(data)
        if item["processes"] or item.get("held"):
            raise NvmlFault("in_use", "In use by another client")
        item["mig"] = item.pop("mig_pending", None) or item["mig"]
        self._write(data)

    def _changeable_gpu(self, index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        data = self._read()
        item = _gpu(data, index)
        _check_permission(data)
        if item["mig"] != "on":
            raise NvmlFault("not_supported", "Not Supported")
        return data, item

    def _read(self) -> dict[str, Any]:
        try:
            data: dict[str, Any] = json.loads(
                self.path.read_text(encoding="utf-8"), object_pairs_hook=reject_repeated_keys
            )
            _check(data)
        except OSError as error:
            raise _bad_file(self.path, f"cannot be read: {system_reason(error)}") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise _bad_file(self.path, f"is not a readable {FORMAT} file: {reason}") from error
        return data

    def _write(self, data: Mapping[str, Any]) -> None:
        # Replaced atomically: a reader, even after a kill, sees the old file or the new one.
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(data, stream, indent=1)
        Path(temporary).replace(self.path)


def replay_from_environment() -> ReplayNvml | None:
    """The replay that TORCHSPLIT_NVML_REPLAY names; None if it is unset. Raises InputFault for a bad file."""
    name = os.environ.get(REPLAY_VARIABLE)
    return ReplayNvml(Path(name)) if name else None


def _check(data: Mapping[str, Any]) -> None:
    """Raise the error of the first missing or invalid entry; `_read` turns it into an InputFault."""
    if not isinstance(data, dict):
        raise TypeError("it is not an object")
    if (data["format"], data["version"]) != (FORMAT, 1):
        raise ValueError(f"not {FORMAT} version 1")
    if not isinstance(data["source"], str) or not isinstance(data["permission"], bool):
        raise ValueError("source is not text, or permission not true or false")
    for item in data["gpus"]:
        for key in ("name", "uuid", "pci_device_id", "type", "lost"):
            item[key]
        if not all(isinstance(item[key], str) for key in ("name", "uuid")):
            raise ValueError("name or uuid is not text")
        if not isinstance(item["pci_device_id"], str | None):
            raise ValueError("pci_device_id is neither text nor null")
        if item["mig"] not in ("on", "off", None) or (item["mig"] == "on" and item["type"] is None):
            raise ValueError("mig is not on, off or null, or is on without a type of the catalogue")
        if type(item["memory_mib"]) is not int or not 0 <= item["memory_mib"] <= MOST_MIB:
            raise ValueError(f"memory_mib is no whole number from 0 to {MOST_MIB}")
        if item.get("mig_pending") not in ("on", "off", None):
            raise ValueError("mig_pending is not on, off or null")
        if item["instances"] and item["mig"] != "on":
            raise ValueError("a GPU has instances where MIG is off")
        placed = [PlacedProfile(entry["profile"], int(entry["start"])) for entry in item["instances"]]
        fault = layout_fault(_type(item), placed) if placed else None
        if fault is not None:
            raise ValueError(fault)
        for entry in item["instances"]:
            int(entry["id"]), entry["compute_instance"], entry["uuid"]
        for process in item["processes"]:
            int(process["pid"]), process["gpu_instance"]
        dict(item["state"])


def _bad_file(path: Path, problem: str) -> InputFault:
    remedy = (
        f"Unset {REPLAY_VARIABLE} to ask this machine's driver, or correct the file; its fields "
        f"stand in ReplayNvml."
    )
    return InputFault(f"{REPLAY_VARIABLE}={path}", problem, remedy)


def _check_permission(data: Mapping[str, Any]) -> None:
    if not data["permission"]:
        raise NvmlFault("no_permission", "Insufficient Permissions")


def _gpu(data: Mapping[str, Any], index: int) -> dict[str, Any]:
    if not 0 <= index < len(data["gpus"]):
        raise NvmlFault("not_found", "Not Found")
    item: dict[str, Any] = data["gpus"][index]
    if item["lost"]:
        raise NvmlFault("lost", "GPU is lost")
    return item


def _type(item: Mapping[str, Any]) -> GpuType:
    return gpu_type(item["type"])


def _instance_entry(item: Mapping[str, Any], gpu_instance_id: int) -> dict[str, Any]:
    for entry in item["instances"]:
        if entry["id"] == gpu_instance_id:
            match: dict[str, Any] = entry
            return match
    raise NvmlFault("not_found", "Not Found")


def _instance(kind: GpuType, entry: Mapping[str, Any]) -> GpuInstanceListing:
    profile = kind.profile(entry["profile"])
    number = entry["compute_instance"]
    computing = () if number is None else (ComputeInstanceListing(number, whole=True),)
    return GpuInstanceListing(
        entry["id"], profile.profile_id, profile.name, entry["start"], profile.memory_slices, computing
    )


def _mig_device(item: Mapping[str, Any], entry: Mapping[str, Any]) -> MigDeviceListing:
    profile: SliceProfile = _type(item).profile(entry["profile"])
    return MigDeviceListing(
        uuid=entry["uuid"],
        name=f"{item['name']} MIG {profile.name}",
        profile=profile.name,
        gpu_instance_id=entry["id"],
        compute_instance_id=entry["compute_instance"],
        memory_bytes=None if profile.memory_gib is None else round(profile.memory_gib * GIB),
        sm_count=profile.sm_count,
    )
