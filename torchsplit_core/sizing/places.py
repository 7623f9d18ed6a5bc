"""The engines among which a sizing chooses: one on every slice, GPU and tensor-parallel group of the offered types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchsplit_core.hardware import gpu_type, plain_profiles
from torchsplit_core.llm.device import EngineDevice, engine_device
from torchsplit_core.llm.step_times import step_lines
from torchsplit_core.sizing.request import GROUPS, OfferedGpu, SizingRequest
from torchsplit_core.values import InputFault


@dataclass(frozen=True, slots=True)
class SizedPlace:
    """A device, the offered type that it is of, and how many of its kind one GPU holds at most."""

    device: EngineDevice
    gpu: OfferedGpu
    instances: int = 1


def engine_places(request: SizingRequest) -> tuple[tuple[SizedPlace, ...], tuple[str, ...]]:
    """Every place, and why types, slices and groups are left out, each reason once.

    Raises InputFault where no place is left.
    """
    reasons: dict[str, InputFault] = {}
    left: list[SizedPlace] = []
    for gpu in request.gpus:
        for profile, tensor_parallel, instances in _places(gpu):
            try:
                device = engine_device(gpu.type, profile=profile, tensor_parallel=tensor_parallel)
                # Which precisions the type has is seen here, before anything is simulated.
                step_lines(request.sizes, device)
            except InputFault as fault:
                reasons.setdefault(fault.problem, fault)
            else:
                left.append(SizedPlace(device, gpu, instances))
    if not left:
        raise next(iter(reasons.values()))
    return tuple(left), tuple(reasons)


def _places(gpu: OfferedGpu) -> Iterator[tuple[str | None, int, int]]:
    """Profile, GPUs, and instances on one GPU."""
    known = gpu_type(gpu.type)
    if known.divided == "mig" and gpu.sliced:
        for profile in plain_profiles(known):
            yield profile.name, 1, profile.max_instances
    for size in GROUPS:
        yield None, size, 1
