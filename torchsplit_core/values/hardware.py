"""GPU types, their MIG profiles and the layouts they can take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SliceProfile:
    """A MIG profile of one GPU type, for example 3g.40gb of A100-80GB.

    `placement_starts` and `memory_slices` are in memory slots of the GPU; an instance at
    start s occupies slots s … s + memory_slices − 1 and `compute_slices` compute slices.
    `memory_gib` and `sm_count` are None where no listing was found.
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
    """A GPU of the catalogue. Figures are None where not sourced.

    `sm_mig_on` are the multiprocessors that MIG slices can reach, those of the largest slice; `sm_mig_off` all
    that the whole GPU computes with. An A100 has 98 and 108.
    """

    name: str
    compute_slices: int
    memory_slices: int
    sm_mig_on: int | None
    sm_mig_off: int | None
    profiles: tuple[SliceProfile, ...]
    pci_device_ids: tuple[str, ...] = ()

    def profile(self, name: str) -> SliceProfile:
        """The profile of that name; KeyError where the GPU has none."""
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
