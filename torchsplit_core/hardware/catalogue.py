"""The catalogue of MIG-capable GPUs, read from data/mig_profiles.json (a source per row).

What a GPU has with MIG off is read from data/gpu_peaks.csv, which has a source per row too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from torchsplit_core.hardware.peaks import peak_names, peaks
from torchsplit_core.values import GpuType, InputFault, SliceProfile


@cache
def catalogue() -> Mapping[str, GpuType]:
    """Every GPU type under its name, in the order of the data file."""
    text = files("torchsplit_core.hardware").joinpath("data/mig_profiles.json").read_text(encoding="utf-8")
    data = json.loads(text)
    sources: dict[str, str] = data["sources"]
    return MappingProxyType({row["gpu"]: _gpu(row, sources) for row in data["gpus"]})


def gpu_type(name: str) -> GpuType:
    """The GPU type of that name. Raises InputFault with the known names for any other."""
    known = catalogue()
    if not isinstance(name, str) or name not in known:
        near = get_close_matches(str(name), known, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise InputFault(
            "GPU type", name, "it is a name of the catalogue", f"{hint}Known are {', '.join(known)}."
        )
    return known[name]


def plain_profiles(gpu: GpuType) -> tuple[SliceProfile, ...]:
    """The profiles a layout is made of: names without + or -, memory sourced.

    The double-memory 1g is among them, media-extension and graphics variants are not.
    `unsourced_profiles` names those left out for want of a memory figure.
    """
    return tuple(p for p in gpu.profiles if _is_plain(p.name) and p.memory_gib is not None)


def unsourced_profiles(gpu: GpuType) -> tuple[str, ...]:
    """Names of plain profiles that are left out because no listing gives their memory: worth a warning."""
    return tuple(p.name for p in gpu.profiles if _is_plain(p.name) and p.memory_gib is None)


def _is_plain(name: str) -> bool:
    return "+" not in name and "-" not in name


def _gpu(row: Mapping[str, Any], sources: Mapping[str, str]) -> GpuType:
    return GpuType(
        name=row["gpu"],
        compute_slices=row["compute_slices"],
        memory_slices=row["memory_slices"],
        sm_mig_on=row["sm_total"],
        sm_mig_off=peaks(row["gpu"]).sm_count if row["gpu"] in peak_names() else None,
        profiles=tuple(_profile(item, sources) for item in row["profiles"]),
        pci_device_ids=tuple(row["pci_device_ids"]),
    )


def _profile(row: Mapping[str, Any], sources: Mapping[str, str]) -> SliceProfile:
    source = sources.get(row["source"], row["source"])
    if row["placements_basis"] != "listed":
        source = f"{source}; placements {row['placements_basis']}"
    return SliceProfile(
        name=row["profile"],
        profile_id=row["profile_id"],
        compute_slices=row["compute_slices"],
        # A placement occupies placement_size slots, and that is what layouts reckon with.
        memory_slices=row["placement_size"],
        sm_count=row["sm_count"],
        memory_gib=row["memory_gib"],
        max_instances=row["max_instances"],
        placement_starts=tuple(row["placement_starts"]),
        media_extensions=row["media_extensions"],
        source=source,
    )
