"""A device that a model can be measured on: a processor, a GPU, a MIG instance or a number of SMs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda", "mig", "sm"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this host, as `--device` and the page choose it.

    `id` is the text that chooses it: "cpu", "cpu:4c" (4 cores of it), "cuda:0", "mig:MIG-…", "sm:16", or "sm:16@1"
    on GPU 1.
    `gpu_type` is "CPU", a name of the catalogue, or the driver's name where the catalogue has none.
    `profile` is the slice that rows are filed under, None for a whole processor or GPU, "4c" for 4 cores.
    `physical` is "cpu" or the GPU's UUID: one measurement at a time runs on each.
    `uuid` is what CUDA_VISIBLE_DEVICES must be for a process to see this device alone, None for a processor.
    `sm_count` and `memory_gib` are None where they are not known; for "sm" they are what is asked for, and
    the measurement reads back what it got.
    """

    kind: DeviceKind
    id: str
    name: str
    gpu_type: str
    profile: str | None
    physical: str
    gpu_index: int | None
    uuid: str | None
    sm_count: int | None
    memory_gib: float | None

    @property
    def basis(self) -> Literal["measured", "emulated"]:
        """The basis of what is measured on it: SMs alone are no slice, so they only emulate one."""
        return "emulated" if self.kind == "sm" else "measured"


@dataclass(frozen=True, slots=True)
class SlicesToMake:
    """MIG slices to make on a GPU for a measurement, one after the other; `consent` is the user's own word."""

    gpu_index: int
    profiles: tuple[str, ...]
    consent: bool
