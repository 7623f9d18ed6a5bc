"""GPU types, their MIG profiles and the layouts they can take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WHOLE_GPU = ""
"""The profile of a GPU that is not cut: null in files. Empty, so that profiles stay texts that sort."""

CPU = "CPU"
"""The gpu_type of points measured on cores of a host, for any host of a fleet."""


def point_type(fleet_type: str) -> str:
    """The gpu_type of the points that a type of a fleet takes: CPU for `CPU-8c`, else the type itself."""
    return CPU if fleet_type.startswith(f"{CPU}-") else fleet_type


def profile_words(profile: str) -> str:
    """A profile as people read it."""
    return profile or "whole GPU"


@dataclass(frozen=True, slots=True)
class SliceProfile:
    """A MIG profile of one GPU type, for example 3g.40gb of A100-80GB.

    `placement_starts` and `memory_slices` are in memory slots of the GPU; an instance at
    start s occupies slots s … s + memory_slices − 1 and `compute_slices` compute slices.
    `memory_gib` and `sm_count` are None where no listing was found. A whole GPU and the cores of a host are
    described in the same way: `name` is WHOLE_GPU, or `4c` with a slot and a compute slice for every core. `profile_id`
    is -1 where the driver has none or it is not published, `placement_starts` empty where they are not published.
    """

    name: str
    profile_id: int
    compute_slices: int
    memory_slices: int
    sm_count: int | None
    memory_gib: float | None
    max_instances: int
    placement_starts: tuple[int, ...]
    media_extensions: bool
    source: str


@dataclass(frozen=True, slots=True)
class GpuType:
    """What a fleet is made of. Figures are None where not sourced.

    `divided`: by MIG, not at all (its `profiles` are none), or by cores (the slots of `CPU-8c` are cores).
    `whole` is the one slice of a GPU that is left whole; None for a CPU.
    `sm_mig_on` are the multiprocessors that MIG slices can reach, those of the largest slice; `sm_mig_off` all
    that the whole GPU computes with. An A100 has 98 and 108.
    `product_names` are its names in nvidia-smi, where sourced; `note` names what is not published of it.
    """

    name: str
    compute_slices: int
    memory_slices: int
    sm_mig_on: int | None
    sm_mig_off: int | None
    profiles: tuple[SliceProfile, ...]
    pci_device_ids: tuple[str, ...] = ()
    divided: Literal["mig", "never", "cores"] = "mig"
    whole: SliceProfile | None = None
    product_names: tuple[str, ...] = ()
    note: str = ""

    def profile(self, name: str) -> SliceProfile:
        """The profile of that name, WHOLE_GPU for the GPU left whole; KeyError where there is none."""
        if name == WHOLE_GPU and self.whole is not None:
            return self.whole
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class PlacedProfile:
    """One instance of a profile at its first memory slot."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A legal set of instances on one GPU, at concrete starts, ordered by start."""

    gpu_type: str
    placed: tuple[PlacedProfile, ...]

    @property
    def profiles(self) -> tuple[str, ...]:
        """The names of its profiles, sorted: what a layout is when starts do not matter."""
        return tuple(sorted(item.profile for item in self.placed))
