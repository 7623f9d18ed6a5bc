"""The state of this host by the driver (NVML) or a replayed listing. MIG and processes are untested on hardware."""

from __future__ import annotations

from datetime import UTC, datetime

from torchsplit_core.hardware.host_state.entries import forced_placement, refusals, state_gpu
from torchsplit_core.hardware.host_state.products import tables
from torchsplit_core.hardware.host_state.smi_listings import (
    ListedInstance,
    Placed,
    Processes,
    profile_name,
    type_name,
    unknown_card,
)
from torchsplit_core.hardware.host_state.validity import check_state
from torchsplit_core.hardware.nvml import GpuListing, MigDeviceListing, Nvml, NvmlFault
from torchsplit_core.values import HostState, InputFault, StateGpu

WHERE = "this host"
AS_ROOT = "Run this as root: the driver shows the starts of MIG instances to nobody else."


def state_of_driver(
    nvml: Nvml, host: str, *, skip_unknown: bool = False
) -> tuple[HostState, tuple[str, ...]]:
    """The host's state, and notes on GPUs that are left out: those that do not answer, and with `skip_unknown` those
    that the catalogue lacks. The tenants are processes; None where the driver does not show them.

    Raises InputFault without any GPU, for a card that the catalogue lacks, and where instances stand at starts that
    the driver does not show to this user and that do not follow from the profiles.
    """
    gpus: list[StateGpu] = []
    notes: list[str] = [] if nvml.origin is None else [nvml.origin]
    try:
        count = nvml.gpu_count()
    except NvmlFault as fault:
        raise InputFault(WHERE, f"cannot list its GPUs: {fault.words}", "Check the driver.") from fault
    for index in range(count):
        try:
            gpu, devices = nvml.gpu(index), nvml.mig_devices(index)
        except NvmlFault as fault:
            notes.append(f"GPU {index} does not answer ({fault.words}) and is left out.")
            continue
        kind = type_name(gpu.name, gpu.pci_device_id, tables())
        if kind is None and not skip_unknown:
            raise InputFault(*unknown_card(WHERE, index, gpu.name).args)
        if kind is None:
            notes.append(f"GPU {index} ({gpu.name}) is not in the catalogue and is left out.")
            continue
        gpus.append(_gpu(nvml, gpu, devices, kind, f"{host}/gpu{index}"))
    if not gpus:
        raise InputFault(
            WHERE, " ".join(("has no GPU that can be read.", *notes)), "Name texts: --smi, --lgi."
        )
    check_state(HostState(tuple(gpus)), WHERE)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return HostState(tuple(gpus), now), tuple(notes)


def _gpu(
    nvml: Nvml, gpu: GpuListing, devices: tuple[MigDeviceListing, ...], kind: str, gpu_id: str
) -> StateGpu:
    where = f"{WHERE}: GPU {gpu.index}"
    processes: Processes
    try:
        processes = [(item.pid, item.gpu_instance_id) for item in nvml.placed_processes(gpu.index)]
    except NvmlFault:
        processes = None
    placed: list[Placed] = []
    if gpu.mig_current:
        try:
            placed = _instances(nvml, gpu.index, devices, kind, where)
        except NvmlFault:
            # Who may not list instances may not see their processes either: that none is shown says nothing.
            processes = None
            profiles = [(item.profile or item.name, item.uuid) for item in devices]
            placed = forced_placement(kind, profiles, where, AS_ROOT)
    return state_gpu(gpu_id, gpu.uuid, kind, gpu.mig_current, placed, processes)


def _instances(
    nvml: Nvml, index: int, devices: tuple[MigDeviceListing, ...], kind: str, where: str
) -> list[Placed]:
    """The GPU instances, each with the UUID of the MIG device that takes all of it."""
    uuids = {(item.gpu_instance_id, item.profile): item.uuid for item in devices}
    with refusals():
        return [
            Placed(
                item.id,
                profile_name(
                    kind,
                    ListedInstance(index, item.profile, item.profile_id, item.id, item.start, item.size),
                    tables(),
                    where,
                ),
                item.start,
                uuids.get((item.id, item.profile)),
            )
            for item in nvml.gpu_instances(index)
        ]
