"""The nvidia-smi commands that create MIG slices and remove them again, for a user to read and run."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.hardware.catalogue import gpu_type, mode_needs_reset
from torchsplit_core.hardware.discovery import HostGpu
from torchsplit_core.hardware.layouts import creation_order, place_layout
from torchsplit_core.values import GpuType, InputFault, Layout

UNTESTED = "Untested on hardware."


def slice_commands(gpu: HostGpu, profiles: Sequence[str]) -> tuple[str, ...]:
    """Commands that give the GPU exactly these slices, show their UUIDs, and remove them afterwards.

    Existing instances are removed first and recreated at the end, at starts that the driver chooses, because an
    unprivileged listing has no starts; `temporary_slices` restores the original starts. Starts are explicit, large
    slices first. Comments begin with #. The commands are untested on hardware.
    Raises InputFault for a GPU that is not in the catalogue or has no MIG mode, for an unknown profile, and for slices
    that do not fit together.
    """
    kind = catalogue_type(gpu)
    layout = legal_layout(kind, profiles)
    mig, at = f"sudo nvidia-smi mig -i {gpu.index}", f"sudo nvidia-smi -i {gpu.index}"
    lines = [f"# GPU {gpu.index}: {gpu.name}. {UNTESTED} Stop every process that uses this GPU first."]
    if not gpu.mig_enabled:
        lines.append(f"{at} -mig 1")
    if gpu.instances:
        lines += [f"{mig} -lgi  # note the placements: they are removed now", *_removal(mig)]
    lines += [
        creation_line(gpu.index, [(item.profile, item.start) for item in creation_order(kind, layout)]),
        "nvidia-smi -L  # the UUIDs of the slices; measure them, then take them away again:",
        *_removal(mig),
    ]
    former = [item.profile for item in gpu.instances]
    if None in former or any("c." in str(name) for name in former):
        lines.append("# make the former instances again as noted above")
    elif former:
        back = place_layout(kind, [str(name) for name in former])
        order = creation_order(kind, back) if back else ()
        names = [item.profile for item in order] or [str(name) for name in former]
        lines.append(f"{mig} -cgi {','.join(names)} -C")
    if not gpu.mig_enabled:
        lines.append(f"{at} -mig 0")
    return tuple(lines)


def mode_commands(kind: str, index: int, *, is_on: bool) -> str:
    """The commands that switch MIG mode of the GPU with this index, joined by &&; `kind` is of the catalogue."""
    at = f"sudo nvidia-smi -i {index}"
    return f"{at} -mig {int(is_on)}" + (f" && {at} --gpu-reset" if mode_needs_reset(kind) else "")


def creation_line(index: int, placed: Sequence[tuple[str, int]], *, compute: bool = True) -> str:
    """The command that creates these (profile, start), ordered large first; `compute` adds compute instances."""
    wanted = ",".join(f"{profile}:{start}" for profile, start in placed)
    return f"sudo nvidia-smi mig -i {index} -cgi {wanted}{' -C' if compute else ''}"


def catalogue_type(gpu: HostGpu) -> GpuType:
    """The catalogue type of a GPU with a MIG mode. Raises InputFault for any other GPU."""
    if gpu.gpu_type is None or gpu.mig_enabled is None:
        why = "is not in the catalogue" if gpu.gpu_type is None else "has no MIG mode"
        raise InputFault(
            f"GPU {gpu.index}",
            f"{gpu.name} {why}, so no MIG slices can be made on it",
            "Measure the whole GPU, or SMs with sm:N.",
        )
    return gpu_type(gpu.gpu_type)


def legal_layout(kind: GpuType, profiles: Sequence[str]) -> Layout:
    """A layout of these slices on one GPU. Raises InputFault if none are given or they do not fit together."""
    if not profiles:
        raise InputFault(f"slices of {kind.name}", "are not given", "Name at least one.")
    layout = place_layout(kind, profiles)
    if layout is None:
        raise InputFault(
            f"slices of {kind.name}",
            f"{', '.join(profiles)} do not fit on one GPU together",
            "Measure them in turns: fewer or smaller slices at a time.",
        )
    return layout


def _removal(mig: str) -> tuple[str, str]:
    # Compute instances must be removed before their GPU instances.
    return f"{mig} -dci", f"{mig} -dgi"
