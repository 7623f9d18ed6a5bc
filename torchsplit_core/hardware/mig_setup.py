"""Creates MIG slices for a measurement and always restores the former ones afterwards. Untested on hardware.

Nothing changes without consent, administrator rights, an idle GPU that is already in MIG mode, and a former state that
can be recreated. A journal is written before the first change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torchsplit_core.hardware.cuda_causes import HOLDERS_HINT
from torchsplit_core.hardware.devices import mig_device
from torchsplit_core.hardware.discovery import read_gpu
from torchsplit_core.hardware.layouts import legal_layouts
from torchsplit_core.hardware.mig_commands import (
    UNTESTED,
    catalogue_type,
    creation_line,
    legal_layout,
    slice_commands,
)
from torchsplit_core.hardware.mig_journal import (
    JournalInstance,
    MigChange,
    open_journal,
    take_journal,
    to_journal_instance,
)
from torchsplit_core.hardware.nvml import GpuInstanceListing, Nvml, NvmlFault
from torchsplit_core.values import Device, GpuType, InputFault, PlacedProfile


@contextmanager
def temporary_slices(
    nvml: Nvml, gpu_index: int, profiles: Sequence[str], consent: bool, *, journal: Path
) -> Iterator[tuple[Device, ...]]:
    """Give a GPU these slices, yield their devices in the order requested, and restore the previous state.

    Existing instances are used as they are; missing ones are created beside them if they fit, else in place of all of
    them. At the end, whatever happens inside, the former instances are restored at their former starts and read back;
    ids and UUIDs may differ. `journal` is the path of a file that exists from before the first change until everything
    is restored, for `restore_from_journal` after a kill.
    MIG mode is never switched. Untested on hardware: it ran only on replayed listings.
    Raises InputFault without consent or rights; for a GPU that is busy, not in MIG mode, or has instances that could
    not be recreated; for slices that do not fit; and if the former instances cannot be restored, naming what is missing
    and the commands that repair it.
    """
    change = _plan_change(nvml, gpu_index, profiles, consent)
    if change.former == change.target:
        yield _devices(nvml, change, profiles)
        return
    with open_journal(journal, change):
        try:
            yield _create_target(nvml, change, profiles)
        finally:
            _restore(nvml, change, journal)


def restore_from_journal(nvml: Nvml, journal: Path) -> str | None:
    """Undo an interrupted change, for example after a kill; returns a sentence on what was done, None for nothing.

    Call it when the program starts; it leaves a change whose process still lives. It removes only instances of the
    change. Untested on hardware.
    Raises InputFault with the commands that repair it if the driver refuses; the journal then stays.
    """
    with take_journal(journal) as change:
        if change is None:
            return None
        _restore(nvml, change, journal)
    names = ", ".join(f"{item.profile}:{item.start}" for item in change.former) or "none"
    return (
        f"{change.gpu_name}: a measurement that was cut off had changed its MIG instances; restored: {names}."
    )


def _plan_change(nvml: Nvml, index: int, profiles: Sequence[str], consent: bool) -> MigChange:
    """Plan the change, and raise every fault that can be detected before anything changes."""
    try:
        listing, gpu = nvml.gpu(index), read_gpu(nvml, index)
    except NvmlFault as fault:
        raise InputFault(f"GPU {index}", f"does not answer: {fault.words}", "See nvidia-smi -L.") from fault
    where = f"MIG slices of GPU {index} ({gpu.name})"
    kind = catalogue_type(gpu)
    legal_layout(kind, profiles)
    commands = "By hand:\n" + "\n".join(slice_commands(gpu, profiles))
    if not consent:
        problem = f"making {', '.join(profiles)} changes MIG instances without consent (untested on hardware)"
        raise InputFault(where, problem, f"Consent, or do it yourself. {commands}")
    if not listing.mig_current or not listing.mig_pending:
        pending = " now, off after the next reset" if listing.mig_current else ""
        mode = (
            f"MIG mode is {'on' if listing.mig_current else 'off'}{pending}, and TorchSplit never switches it"
        )
        raise InputFault(where, mode, commands)
    try:
        busy = nvml.processes(index)
        if busy:
            shown = f"in use by {'process' if len(busy) == 1 else 'processes'} {', '.join(map(str, busy))}"
            raise InputFault(where, shown, f"Wait for them or stop them first. {HOLDERS_HINT}")
        present = nvml.gpu_instances(index)
    except NvmlFault as fault:
        raise InputFault(where, f"cannot be listed: {fault.words}", f"Run as root. {commands}") from fault
    for item in present:
        if len(item.compute_instances) > 1 or not all(part.whole for part in item.compute_instances):
            raise InputFault(
                where,
                f"{item.profile} at {item.start} is divided into compute instances, which cannot be made again",
                f"Measure another GPU, or do it by hand. {commands}",
            )
    former = tuple(to_journal_instance(item) for item in present)
    return MigChange(gpu.uuid, gpu.name, former, _target_instances(kind, former, profiles))


def _target_instances(
    kind: GpuType, former: tuple[JournalInstance, ...], profiles: Sequence[str]
) -> tuple[JournalInstance, ...]:
    """The former instances plus the missing ones if they fit together, else only the wanted ones.

    A wanted instance without a compute instance gets one.
    """
    wanted = Counter(profiles)
    missing = wanted - Counter(item.profile for item in former)
    former_kept = tuple(_with_compute_instance(item) if item.profile in wanted else item for item in former)
    if not missing:
        return former_kept
    present = {PlacedProfile(item.profile, item.start) for item in former}
    for layout in legal_layouts(kind):
        added = set(layout.placed) - present
        if present <= set(layout.placed) and Counter(item.profile for item in added) == missing:
            return tuple(sorted((*former_kept, *_instances(kind, added)), key=lambda item: item.start))
    return _instances(kind, legal_layout(kind, profiles).placed)


def _with_compute_instance(item: JournalInstance) -> JournalInstance:
    return JournalInstance(item.profile, item.profile_id, item.start, item.size, computes=True)


def _instances(kind: GpuType, placed: Iterable[PlacedProfile]) -> tuple[JournalInstance, ...]:
    placements = [(kind.profile(item.profile), item.start) for item in placed]
    return tuple(
        JournalInstance(p.name, p.profile_id, start, p.memory_slices, computes=True)
        for p, start in placements
    )


def _apply_instances(
    nvml: Nvml, index: int, wanted: Sequence[JournalInstance], removable_instances: Sequence[JournalInstance]
) -> None:
    """Give the GPU the wanted instances; of the others, remove only those in `removable_instances`.

    Every step reads the present state, so that the function can be interrupted anywhere and called again.
    """
    targets = {item.place: item for item in wanted}
    removable = {item.place for item in removable_instances} - set(targets)
    for item in nvml.gpu_instances(index):
        place = to_journal_instance(item).place
        if place in removable or (place in targets and not targets[place].computes):
            for part in item.compute_instances:
                nvml.destroy_compute_instance(index, item.id, part.id)
        if place in removable:
            nvml.destroy_gpu_instance(index, item.id)
    present = {to_journal_instance(item).place: item for item in nvml.gpu_instances(index)}
    # Large first: a driver that moves them still has room for the large ones.
    for instance in sorted(wanted, key=lambda item: (-item.size, item.start)):
        made = present.get(instance.place)
        number = made.id if made else nvml.create_gpu_instance(index, *instance.place)
        if instance.computes and not (made and made.compute_instances):
            nvml.create_compute_instance(index, number)


def _create_target(nvml: Nvml, change: MigChange, profiles: Sequence[str]) -> tuple[Device, ...]:
    """Create the target and return its devices. Raises InputFault with the driver's message if it refuses."""
    try:
        _apply_instances(nvml, _gpu_index(nvml, change), change.target, change.former)
        return _devices(nvml, change, profiles)
    except NvmlFault as fault:
        held = f" {HOLDERS_HINT}" if fault.kind == "in_use" else ""
        raise InputFault(
            f"MIG slices of {change.gpu_name}",
            f"the driver did not make {', '.join(profiles)}: {fault.words}",
            f"The former instances come back.{held} {UNTESTED}",
        ) from fault


def _devices(nvml: Nvml, change: MigChange, profiles: Sequence[str]) -> tuple[Device, ...]:
    """The devices of these profiles, one per name. Raises NvmlFault if the driver does not list one."""
    index = _gpu_index(nvml, change)
    gpu = read_gpu(nvml, index)
    left = list(gpu.instances)
    devices = []
    for name in profiles:
        instance = next((item for item in left if item.profile == name), None)
        if instance is None:
            raise NvmlFault("other", f"no MIG device {name} is listed after it was made")
        left.remove(instance)
        devices.append(mig_device(gpu, instance))
    return tuple(devices)


def _gpu_index(nvml: Nvml, change: MigChange) -> int:
    """The present index of the GPU, which changes when another GPU falls off the bus."""
    for index in range(nvml.gpu_count()):
        try:
            if nvml.gpu(index).uuid == change.gpu_uuid:
                return index
        except NvmlFault as fault:
            if fault.kind != "lost":
                raise
    raise NvmlFault("lost", f"no GPU with UUID {change.gpu_uuid} answers")


def _restore(nvml: Nvml, change: MigChange, journal: Path) -> None:
    """Restore the former instances, verify them, and remove the journal. Raises InputFault if that fails."""
    refused = None
    try:
        _apply_instances(nvml, _gpu_index(nvml, change), change.former, change.target)
        if not any(_differences(nvml, change)):
            journal.unlink(missing_ok=True)
            return
    except NvmlFault as fault:
        refused = fault
    raise _unrestored_fault(nvml, change, journal, refused) from refused


def _differences(
    nvml: Nvml, change: MigChange
) -> tuple[list[JournalInstance], list[GpuInstanceListing], list[JournalInstance]]:
    """Former instances that are missing, instances of the change that remain, and former instances whose
    compute instance differs."""
    present = {to_journal_instance(item).place: item for item in nvml.gpu_instances(_gpu_index(nvml, change))}
    former = {item.place for item in change.former}
    missing = [item for item in change.former if item.place not in present]
    left = [present[item.place] for item in change.target if item.place in set(present) - former]
    other = [
        item
        for item in change.former
        if item.place in present and bool(present[item.place].compute_instances) != item.computes
    ]
    return missing, left, other


def _unrestored_fault(nvml: Nvml, change: MigChange, journal: Path, refused: NvmlFault | None) -> InputFault:
    where = f"MIG instances of {change.gpu_name}"
    words = "" if refused is None else f" (the driver said: {refused.words})"
    held = f"{HOLDERS_HINT} " if refused is not None and refused.kind == "in_use" else ""
    after = f"{held}Or start TorchSplit again: {journal} knows what is to be restored."
    try:
        index = _gpu_index(nvml, change)
        missing, left, other = _differences(nvml, change)
    except NvmlFault:
        names = ", ".join(f"{item.profile}:{item.start}" for item in change.former) or "no instance"
        remedy = f"When the GPU answers again it has to have {names}. {after}"
        return InputFault(where, f"could not be restored{words} (untested on hardware)", remedy)
    differences = [f"{item.profile} at {item.start} is missing" for item in missing]
    differences += [f"{item.profile} at {item.start} is still there" for item in left]
    differences += [
        f"the compute instance of {item.profile} at {item.start} is not as it was" for item in other
    ]
    at = f"sudo nvidia-smi mig -i {index}"
    lines = [line for item in left for line in (f"{at} -dci -gi {item.id}", f"{at} -dgi -gi {item.id}")]
    for computes in (True, False):
        order = sorted((item for item in missing if item.computes == computes), key=lambda item: -item.size)
        if order:
            lines.append(creation_line(index, [(i.profile, i.start) for i in order], compute=computes))
    if other:
        lines.append(f"{at} -lci  # and repair the compute instances named above")
    problem = ("; ".join(differences) or "what is there could not be verified") + words
    repair = "\n".join(["To restore them:", *lines, after])
    return InputFault(where, f"could not be restored (untested on hardware): {problem}", repair)
