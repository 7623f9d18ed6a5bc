"""The host of a change: which of a state's it is, what stands on its GPUs now, and how that differs."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torchsplit_core.apply.standing import Standing, Standings
from torchsplit_core.hardware import Nvml, NvmlFault
from torchsplit_core.hardware.discovery import read_gpu
from torchsplit_core.hardware.gpu_ids import device_indices, host_of
from torchsplit_core.values import (
    WHOLE_GPU,
    HostState,
    InputFault,
    PlacedProfile,
    StateGpu,
    point_type,
    quoted,
    slice_name,
    suggestion,
)

CAPTURE_AGAIN = "Capture the host again (torchsplit capture) and apply the plan from that state."


@dataclass(frozen=True, slots=True)
class PresentInstance:
    """A GPU instance that the driver lists. `is_complete`: one compute instance takes all of it."""

    id: int
    place: PlacedProfile
    uuid: str | None
    compute_instances: tuple[int, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class PresentGpu:
    """A GPU as the driver lists it now; `index` of nvidia-smi."""

    index: int
    uuid: str
    type: str | None
    mig_enabled: bool | None
    is_pending: bool
    instances: tuple[PresentInstance, ...]

    def instance(self, place: PlacedProfile) -> PresentInstance | None:
        """The instance at a place, None where none stands there."""
        return next((item for item in self.instances if item.place == place), None)


Presence = Mapping[str, PresentGpu]
"""By the id of the GPU in the state; cores are not among them."""


def hosts_of(state: HostState) -> tuple[str | None, ...]:
    """The hosts that the ids name, in their order; None is the one without a name."""
    return tuple(dict.fromkeys(host_of(gpu.id) for gpu in state.gpus))


def gpus_of(state: HostState, host: str) -> tuple[StateGpu, ...]:
    """The GPUs of a host; all where the ids name no host. Raises InputFault for a host that is not in the state."""
    hosts = hosts_of(state)
    gpus = state.gpus if hosts == (None,) else tuple(gpu for gpu in state.gpus if host_of(gpu.id) == host)
    if not gpus:
        known = [name for name in hosts if name is not None]
        raise InputFault("--from", f"has no GPU of the host {quoted(host)}", suggestion(host, known, "hosts"))
    return gpus


def this_host(state: HostState, confirmed: str, name: str | None, nvml: Nvml) -> str:
    """The host to change: `confirmed`, if this machine is that one.

    It is if it goes by that name (`name`, else the host name). Without `name` it also is if it has every GPU of the
    named host by its UUID, or is a replayed listing, which may be of any host. Raises InputFault if it is not, and
    where the state has no such host.
    """
    gpus = gpus_of(state, confirmed)
    full = socket.gethostname()
    if confirmed in ({full, full.partition(".")[0]} if name is None else {name}):
        return confirmed
    if name is None and None not in hosts_of(state):
        if nvml.origin is not None:
            return confirmed
        if all(gpu.uuid is not None for gpu in gpus if is_gpu(gpu)):
            read_host(nvml, gpus)  # raises where one is missing: UUIDs are unique
            return confirmed
    raise InputFault(
        "--yes",
        f"names {quoted(confirmed)}, but this machine is {quoted(name or full)}",
        "Run it on that host; if this is the one, add --host with its name in the state.",
    )


def read_host(nvml: Nvml, gpus: Sequence[StateGpu]) -> Presence:
    """What stands on these GPUs of this host now, each found by its UUID, else by its index.

    Raises InputFault for a GPU that is gone or does not answer.
    """
    indices = device_indices([gpu.id for gpu in gpus if is_gpu(gpu)])
    by_uuid = _indices_by_uuid(nvml)
    presence = {}
    for gpu in gpus:
        if not is_gpu(gpu):
            continue
        index = indices[gpu.id] if gpu.uuid is None else by_uuid.get(gpu.uuid)
        if index is None or index not in by_uuid.values():
            missing = f"index {index}" if gpu.uuid is None else gpu.uuid
            raise InputFault(
                gpu.id, f"is not on this host now: no GPU that answers has {missing}", CAPTURE_AGAIN
            )
        with driver_faults(gpu.id):
            presence[gpu.id] = _read_gpu(nvml, index)
    return presence


def with_host_facts(state: HostState, host: str, nvml: Nvml) -> HostState:
    """The state with what it does not know and the driver shows: MIG modes, and instances on which nothing runs.

    Raises InputFault as `read_host` does.
    """
    presence = read_host(nvml, gpus_of(state, host))
    return replace(
        state,
        gpus=tuple(
            _with_facts(gpu, presence[gpu.id], nvml) if gpu.id in presence else gpu for gpu in state.gpus
        ),
    )


def _with_facts(gpu: StateGpu, present: PresentGpu, nvml: Nvml) -> StateGpu:
    mode = present.mig_enabled if gpu.mig_enabled is None else gpu.mig_enabled
    if all(item.tenants is not None for item in gpu.instances):
        return replace(gpu, mig_enabled=mode)
    with driver_faults(gpu.id):
        busy = {item.gpu_instance_id for item in nvml.placed_processes(present.index)}
    # A process whose instance the driver does not name may be on any.
    idle = {item.place for item in present.instances if not busy & {item.id, None}}
    if not busy:
        idle.add(PlacedProfile(WHOLE_GPU, 0))
    instances = tuple(
        replace(item, tenants=())
        if item.tenants is None and PlacedProfile(item.profile, item.start) in idle
        else item
        for item in gpu.instances
    )
    return replace(gpu, mig_enabled=mode, instances=instances)


@contextmanager
def driver_faults(gpu_id: str) -> Iterator[None]:
    """Turns the driver's refusals of a GPU into InputFault."""
    try:
        yield
    except NvmlFault as fault:
        remedy = (
            "Run it as root." if fault.kind == "no_permission" else "See nvidia-smi -L and the kernel's log."
        )
        raise InputFault(gpu_id, f"the driver says: {fault.words}", remedy) from fault


def state_difference(
    gpus: Sequence[StateGpu], standings: Standings, presence: Presence, *, ignore_uuids: bool = False
) -> str | None:
    """The first difference between a state and its host, types and UUIDs of slices included; None if they are equal."""
    for gpu in gpus:
        present = presence.get(gpu.id)
        if present is None:
            continue
        if present.type not in (None, gpu.type):
            return f"{gpu.id} is of type {present.type}, in the state {gpu.type}"
        difference = standing_difference(gpu.id, standings[gpu.id], present)
        if difference is not None:
            return difference
        for item in gpu.instances:
            instance = present.instance(PlacedProfile(item.profile, item.start))
            uuid = None if instance is None else instance.uuid
            if not ignore_uuids and None not in (item.uuid, uuid) and uuid != item.uuid:
                where = f"{slice_name(item.profile, item.start)} of {gpu.id}"
                return f"{where} has the UUID {uuid}, in the state {item.uuid}"
    return None


def standing_difference(gpu_id: str, standing: Standing, present: PresentGpu) -> str | None:
    """The first difference between what should stand on a GPU and what does; None if there is none."""
    mode = mode_difference(gpu_id, standing, present)
    if mode is not None:
        return mode
    expected = instances_of(standing)
    places = {item.place for item in present.instances}
    for place in sorted(expected - places, key=_by_start):
        return f"{slice_name(place.profile, place.start)} of {gpu_id} is not there"
    for place in sorted(places - expected, key=_by_start):
        return f"{slice_name(place.profile, place.start)} of {gpu_id} is there and should not be"
    for item in present.instances:
        if not item.is_complete:
            where = f"{slice_name(item.place.profile, item.place.start)} of {gpu_id}"
            return f"{where} has no compute instance that takes all of it"
    return None


def mode_difference(gpu_id: str, standing: Standing, present: PresentGpu) -> str | None:
    """How MIG mode differs from what should stand; None if it does not."""
    if present.is_pending:
        return f"MIG mode of {gpu_id} changes with its next reset"
    expected = standing.mig_enabled
    if expected is None and standing.places:
        expected = bool(instances_of(standing))
    if expected is not None and expected != bool(present.mig_enabled):
        return f"MIG mode of {gpu_id} is {'on' if present.mig_enabled else 'off'}"
    return None


def instances_of(standing: Standing) -> frozenset[PlacedProfile]:
    """The MIG instances that should stand: a GPU that is left whole has none."""
    return frozenset(place for place in standing.places if place.profile)


def _by_start(place: PlacedProfile) -> tuple[int, str]:
    return place.start, place.profile


def is_gpu(gpu: StateGpu) -> bool:
    """Whether it is not the cores of its host."""
    return point_type(gpu.type) == gpu.type


def _indices_by_uuid(nvml: Nvml) -> dict[str, int]:
    """The GPUs that answer; one that fell off the bus is as good as gone."""
    indices = {}
    with driver_faults("GPUs of this host"):
        for index in range(nvml.gpu_count()):
            try:
                indices[nvml.gpu(index).uuid] = index
            except NvmlFault as fault:
                if fault.kind != "lost":
                    raise
    return indices


def _read_gpu(nvml: Nvml, index: int) -> PresentGpu:
    listing, gpu = nvml.gpu(index), read_gpu(nvml, index)
    uuids = {item.gpu_instance_id: item.uuid for item in gpu.instances}
    instances = [
        PresentInstance(
            item.id,
            PlacedProfile(item.profile, item.start),
            uuids.get(item.id),
            tuple(part.id for part in item.compute_instances),
            len(item.compute_instances) == 1 and item.compute_instances[0].whole,
        )
        for item in (nvml.gpu_instances(index) if gpu.mig_enabled else ())
    ]
    is_pending = bool(listing.mig_current) != bool(listing.mig_pending)
    return PresentGpu(index, gpu.uuid, gpu.gpu_type, gpu.mig_enabled, is_pending, tuple(instances))
