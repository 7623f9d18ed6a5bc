"""The catalogue of MIG-capable GPUs, read from data/mig_profiles.json (a source per row), and other fleet entries.

GPUs without MIG, and what a GPU has with MIG off, are read from data/gpu_peaks.csv, which has a source per row too.
`CPU-8c` is a host of 8 cores, divisible at will; `CPU-8c.64gib` also gives its memory, of which a slice of K cores
has K/8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from torchsplit_core.hardware.peaks import peak_names, peaks
from torchsplit_core.values import CPU, WHOLE_GPU, GpuType, InputFault, SliceProfile, quoted, suggestion

MOST_CORES = 512
"""Cores of the largest host that can be planned."""
_HOST = re.compile(rf"{CPU}-([1-9]\d{{0,3}})c(?:\.([1-9]\d{{0,5}}(?:\.\d{{1,3}})?)gib)?")
"""A host: its cores and, optionally, its memory in GiB."""


@cache
def catalogue() -> Mapping[str, GpuType]:
    """Every MIG-capable GPU type by name, in the order of the data file."""
    text = files("torchsplit_core.hardware").joinpath("data/mig_profiles.json").read_text(encoding="utf-8")
    data = json.loads(text)
    sources: dict[str, str] = data["sources"]
    return MappingProxyType({row["gpu"]: _gpu(row, sources) for row in data["gpus"]})


@cache
def without_mig() -> Mapping[str, GpuType]:
    """The GPU types without MIG by name, in the order of the data file."""
    return MappingProxyType({name: _whole_gpu_type(name) for name in peak_names() if name not in catalogue()})


def gpu_type(name: str) -> GpuType:
    """The type of a fleet entry: a GPU with or without MIG, or `CPU-8c`, a host of 8 cores (`CPU-8c.64gib`: with its
    memory).

    Raises InputFault with the known names for any other name.
    """
    known = {**catalogue(), **without_mig()}
    if isinstance(name, str) and name in known:
        return known[name]
    cores = _HOST.fullmatch(name) if isinstance(name, str) else None
    if cores is not None and int(cores[1]) <= MOST_CORES:
        return _host_type(name, int(cores[1]), float(cores[2]) if cores[2] else None)
    if cores is not None:
        raise InputFault(
            "GPU type",
            f"{quoted(name)} has {cores[1]} cores, more than the {MOST_CORES} of a host",
            "Split it into several hosts.",
        )
    named = suggestion(name, known, "GPU types")
    cpus = f"{CPU}-Nc stands for N cores of a host, {CPU}-Nc.Mgib with its memory."
    raise InputFault("", f"unknown GPU type {quoted(name)}", f"{named} {cpus}")


_MODE_NEEDS_RESET = ("A30", "A100")


def mode_needs_reset(name: str | None) -> bool:
    """Whether a change of MIG mode waits for a reset of the GPU: on Ampere. From Hopper on it takes effect at once.

    Source: NVIDIA MIG User Guide, "Deployment Considerations" and "Enable MIG Mode".
    """
    return name is not None and name.partition("-")[0] in _MODE_NEEDS_RESET


def profile_cores(profile: str) -> int | None:
    """The number of cores in the name of a CPU profile: 4 for `4c`; None if it names none."""
    match = re.fullmatch(r"([1-9]\d{0,3})c", profile)
    return int(match[1]) if match is not None and int(match[1]) <= MOST_CORES else None


def plain_profiles(gpu: GpuType) -> tuple[SliceProfile, ...]:
    """The profiles that layouts use: names without + or -, and sourced memory.

    They include the double-memory 1g but no media-extension or graphics variants. For a host, every number of its
    cores is a profile, whether or not its memory is known.
    `unsourced_profiles` names those omitted for lack of a memory figure.
    """
    if gpu.divided == "cores":
        return gpu.profiles
    return tuple(p for p in gpu.profiles if _is_plain(p.name) and p.memory_gib is not None)


def sliced_types() -> tuple[str, ...]:
    """The MIG types that have layouts: those with at least one profile whose memory is sourced."""
    return tuple(name for name, gpu in catalogue().items() if plain_profiles(gpu))


def unsourced_profiles(gpu: GpuType) -> tuple[str, ...]:
    """Names of plain profiles omitted because no listing gives their memory; callers should warn about them."""
    known = {profile.name for profile in plain_profiles(gpu)}
    return tuple(p.name for p in gpu.profiles if _is_plain(p.name) and p.name not in known)


def _is_plain(name: str) -> bool:
    return "+" not in name and "-" not in name


@cache
def _host_type(name: str, cores: int, memory_gib: float | None) -> GpuType:
    """A host whose cores are its slots. K of its N cores have K/N of its memory, if the name gives it."""
    profiles = tuple(
        SliceProfile(
            name=f"{count}c",
            profile_id=-1,
            compute_slices=count,
            memory_slices=count,
            sm_count=None,
            memory_gib=None if memory_gib is None else memory_gib * count / cores,
            max_instances=cores // count,
            placement_starts=tuple(range(cores - count + 1)),
            media_extensions=False,
            source="any cores of a host",
        )
        for count in range(1, cores + 1)
    )
    return GpuType(name, cores, cores, None, None, profiles, divided="cores")


def _whole_gpu_type(name: str) -> GpuType:
    """A GPU without MIG: one slot, one compute slice."""
    return GpuType(
        name,
        1,
        1,
        None,
        peaks(name).sm_count,
        (),
        divided="never",
        whole=_whole_profile(name, compute=1, memory=1),
    )


def _whole_profile(name: str, *, compute: int, memory: int) -> SliceProfile | None:
    """The single slice of a GPU left whole; None if its peaks are unknown."""
    if name not in peak_names():
        return None
    known = peaks(name)
    return SliceProfile(
        name=WHOLE_GPU,
        profile_id=-1,
        compute_slices=compute,
        memory_slices=memory,
        sm_count=known.sm_count,
        memory_gib=known.memory_gib,
        max_instances=1,
        placement_starts=(0,),
        media_extensions=True,
        source=known.source,
    )


def _gpu(row: Mapping[str, Any], sources: Mapping[str, str]) -> GpuType:
    return GpuType(
        name=row["gpu"],
        compute_slices=row["compute_slices"],
        memory_slices=row["memory_slices"],
        sm_mig_on=row["sm_total"],
        sm_mig_off=peaks(row["gpu"]).sm_count if row["gpu"] in peak_names() else None,
        profiles=tuple(_profile(item, sources) for item in row["profiles"]),
        pci_device_ids=tuple(row["pci_device_ids"]),
        whole=_whole_profile(row["gpu"], compute=row["compute_slices"], memory=row["memory_slices"]),
        product_names=tuple(row.get("product_names", ())),
        note=row.get("note", ""),
    )


def _profile(row: Mapping[str, Any], sources: Mapping[str, str]) -> SliceProfile:
    source = sources.get(row["source"], row["source"])
    if row["placements_basis"] != "listed":
        source = f"{source}; placements {row['placements_basis']}"
    return SliceProfile(
        name=row["profile"],
        profile_id=row["profile_id"],
        compute_slices=row["compute_slices"],
        # A placement occupies placement_size slots, which is what layouts count.
        memory_slices=row["placement_size"],
        sm_count=row["sm_count"],
        memory_gib=row["memory_gib"],
        max_instances=row["max_instances"],
        placement_starts=tuple(row["placement_starts"]),
        media_extensions=row["media_extensions"],
        source=source,
    )
