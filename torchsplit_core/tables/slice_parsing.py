"""Maps the ways to write a slice (3, 3g, 3g.40gb, MIG 3g.40gb) to the catalogue's profile."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchsplit_core.hardware import catalogue, peak_names, profile_cores
from torchsplit_core.tables.cell_parsing import CellFault, is_missing
from torchsplit_core.values import CPU, GpuType, InputFault, quoted, suggestion

_COUNT = re.compile(r"([1-9][0-9]?)(?:\.0*)?g?")
_LEADING = re.compile(r"(?:mig[ _-]*)?([0-9]+(?:\.[0-9]+)?)(?:g(?:\..*)?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SliceChoice:
    """The chosen profile, and the others that the cell could mean."""

    name: str
    alternatives: tuple[str, ...] = ()


def known_gpu(name: str) -> bool:
    """Whether the catalogue or the table of peaks has it, or it is CPU."""
    return name in _gpus()


def check_gpu_type(name: str) -> None:
    """Raises InputFault unless `known_gpu`."""
    if not known_gpu(name):
        raise InputFault("", f"unknown GPU type {quoted(name)}", suggestion(name, _gpus(), "GPU types"))


def _gpus() -> tuple[str, ...]:
    return (*catalogue(), *peak_names(), CPU)


def choose_slice(gpu_type: str, profile: str, compute_slices: str) -> SliceChoice | None:
    """The slice that the two cells name; None (the whole GPU without MIG) if both are empty.

    Several profiles have the same compute slices (1g.10gb and 1g.20gb): a bare number means the one with the least
    memory. Raises CellFault if the GPU does not have the slice, or the cells contradict each other.
    """
    by_profile = _parse_slice(gpu_type, profile, "profile")
    by_count = _parse_slice(gpu_type, compute_slices, "compute_slices")
    if by_profile is None or by_count is None:
        return by_profile or by_count
    gpu = catalogue()[gpu_type]
    if gpu.profile(by_profile.name).compute_slices != gpu.profile(by_count.name).compute_slices:
        raise CellFault(
            f"is {quoted(compute_slices)}, but the slice {profile} has {gpu.profile(by_profile.name).compute_slices}",
            "Correct one of the two.",
            "compute_slices",
        )
    return by_profile


def _parse_slice(gpu_type: str, text: str, column: str) -> SliceChoice | None:
    if is_missing(text) or text.lower() in ("whole", "full"):
        return None
    if gpu_type == CPU and column == "profile" and profile_cores(text.lower()):
        return SliceChoice(text.lower())
    gpu = catalogue().get(gpu_type)
    if gpu is None:
        raise CellFault(
            f"is {quoted(text)}, but {gpu_type} has no known slices",
            f"Leave it empty for the whole device, or name another GPU type: {', '.join(catalogue())}.",
            column,
        )
    wanted = re.sub(r"^mig[ _-]*", "", text.lower())
    exact = next((item.name for item in gpu.profiles if item.name.lower() == wanted), None)
    if exact is not None:
        return SliceChoice(exact)
    counted = _COUNT.fullmatch(wanted)
    names = _profiles_with_count(gpu, int(counted[1])) if counted else ()
    if not names:
        known = [item.name for item in gpu.profiles if "+" not in item.name]
        raise CellFault(
            f"is {quoted(text)}, not a slice of {gpu_type}", suggestion(text, known, "slices"), column
        )
    return SliceChoice(names[0], names[1:])


def _profiles_with_count(gpu: GpuType, compute_slices: int) -> tuple[str, ...]:
    """Plain profiles with so many compute slices, least memory first, by memory slots, which are always known."""
    profiles = [
        item
        for item in gpu.profiles
        if item.compute_slices == compute_slices and "+" not in item.name and "-" not in item.name
    ]
    return tuple(item.name for item in sorted(profiles, key=lambda item: item.memory_slices))


def parse_slice_size(text: str) -> float:
    """Size of a slice from 3, 3g or 3g.40gb. Raises CellFault if the text does not begin with a number."""
    match = _LEADING.fullmatch(text)
    if not match or not 0 < float(match[1]) <= 1024:
        raise CellFault(
            f"is {quoted(text)}, not a slice", "Give its compute slices (1, 2, 3, 4, 7) or a MIG profile."
        )
    return float(match[1])
