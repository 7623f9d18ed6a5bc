"""The nvidia-smi lines that make MIG slices and take them away again, for a person to read and run."""

from __future__ import annotations

from collections.abc import Sequence

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.discovery import HostGpu
from torchsplit_core.hardware.layouts import creation_order, place_layout
from torchsplit_core.values import GpuType, InputFault, Layout

UNTESTED = "Untested on hardware."


def slice_commands(gpu: HostGpu, profiles: Sequence[str]) -> tuple[str, ...]:
    """Lines that give that GPU exactly these slices, show their UUIDs, and remove them afterwards.

    Instances that exist are removed first and made again at the end, at places the driver chooses, as a
    listing without rights tells no starts; `temporary_slices` puts them back where they were. Starts are
    explicit, large slices first. Comments begin with #. The commands are untested on hardware.
    Raises InputFault for a GPU that the catalogue has not got or that has no MIG mode, for an unknown
    profile, and for slices that do not fit together.
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


def creation_line(index: int, placed: Sequence[tuple[str, int]], *, compute: bool = True) -> str:
    """The one command that creates these (profile, start), large first as given, with compute instances."""
    wanted = ",".join(f"{profile}:{start}" for profile, start in placed)
    return f"sudo nvidia-smi mig -i {index} -cgi {wanted}{' -C' if compute else ''}"


def catalogue_type(gpu: HostGpu) -> GpuType:
    """The catalogue's type of a GPU with MIG mode; InputFault for any other GPU."""
    if gpu.gpu_type is None or gpu.mig_enabled is None:
        why = "is not in the catalogue" if gpu.gpu_type is None else "has no MIG mode"
        raise InputFault(
            f"GPU {gpu.index}",
            f"{gpu.name} {why}, so no MIG slices can be made on it",
            "Measure the whole GPU, or SMs with sm:N.",
        )
    return gpu_type(gpu.gpu_type)


def legal_layout(kind: GpuType, profiles: Sequence[str]) -> Layout:
    """Starts for these slices on one GPU; InputFault where there are none or they do not fit together."""
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
    # Compute instances go before the GPU instances that hold them.
    return f"{mig} -dci", f"{mig} -dgi"
