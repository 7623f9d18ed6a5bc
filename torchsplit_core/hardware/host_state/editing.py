"""A host state changed by hand: GPUs that come and go, their MIG mode, their instances and who uses them.

An instance that stays keeps its UUID. A changed state has no time of capture. `check_state` says whether one can be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import count as counter
from itertools import islice

from torchsplit_core.hardware.catalogue import gpu_type
from torchsplit_core.hardware.host_state.validity import has_mig
from torchsplit_core.hardware.layouts import place_layout
from torchsplit_core.values import (
    WHOLE_GPU,
    ForeignTenant,
    HostState,
    InputFault,
    StateGpu,
    StateInstance,
    Tenant,
)

Tenants = tuple[Tenant | ForeignTenant, ...] | None
"""Of an instance; None: not known."""


def is_divided(gpu: StateGpu) -> bool:
    """Whether the GPU has instances rather than being left whole: as its MIG mode says, else as its instances show."""
    kind = gpu_type(gpu.type)
    if not has_mig(kind):
        return kind.divided == "cores"
    if gpu.mig_enabled is not None:
        return gpu.mig_enabled
    return all(item.profile != WHOLE_GPU for item in gpu.instances)


def instance_at(gpu: StateGpu, start: int) -> StateInstance | None:
    """The instance that begins at this memory slot."""
    return next((item for item in gpu.instances if item.start == start), None)


def add_gpus(state: HostState, kind: str, count: int, host: str = "") -> HostState:
    """The state with `count` more empty GPUs of a type at its end, named HOST/gpuN (without a host gpuN; cores cpuN) by
    the free numbers. MIG mode is on where the type has it."""
    ids, known = {gpu.id for gpu in state.gpus}, gpu_type(kind)
    prefix = f"{host}/" if host else ""
    word = "cpu" if known.divided == "cores" else "gpu"
    free = (name for number in counter() if (name := f"{prefix}{word}{number}") not in ids)
    mode = True if has_mig(known) else None
    return HostState((*state.gpus, *(StateGpu(name, kind, None, mode) for name in islice(free, count))))


def remove_gpus(state: HostState, ids: Collection[str]) -> HostState:
    """The state without these GPUs."""
    return HostState(tuple(gpu for gpu in state.gpus if gpu.id not in ids))


def set_mode(state: HostState, ids: Collection[str], *, is_on: bool) -> HostState:
    """The state with MIG mode of these GPUs switched: whoever changes its mode is empty then."""

    def switched(gpu: StateGpu) -> StateGpu:
        return replace(gpu, mig_enabled=is_on, instances=gpu.instances if is_divided(gpu) is is_on else ())

    return _on(state, ids, switched)


def set_layout(state: HostState, ids: Collection[str], profiles: Sequence[str]) -> HostState:
    """The state in which these GPUs have the instances of a legal layout; those at their places stay, others are empty.

    Raises InputFault where the profiles do not fit together.
    """

    def cut(gpu: StateGpu) -> StateGpu:
        layout = place_layout(gpu_type(gpu.type), profiles)
        if layout is None:
            raise InputFault(
                f"layout of {gpu.id}",
                f"{' + '.join(profiles)} do not fit on one {gpu.type} together",
                "Choose a legal layout.",
            )
        instances = (
            next(
                (old for old in gpu.instances if (old.profile, old.start) == (item.profile, item.start)),
                StateInstance(item.profile, item.start, None, ()),
            )
            for item in layout.placed
        )
        return replace(gpu, instances=tuple(instances))

    return _on(state, ids, cut)


def set_instance(
    state: HostState, ids: Collection[str], start: int, place: tuple[str, int] | None, tenants: Tenants = ()
) -> HostState:
    """The state in which the instance at `start` of these GPUs is replaced by (profile, start) with these tenants, or
    removed. At its old place it keeps its UUID. A GPU left whole on which nothing runs has no instance."""

    def changed(gpu: StateGpu) -> StateGpu:
        old = instance_at(gpu, start)
        instances = [item for item in gpu.instances if item is not old]
        if place is not None and (place[0] != WHOLE_GPU or tenants != ()):
            uuid = old.uuid if old is not None and (old.profile, old.start) == place else None
            instances.append(StateInstance(*place, uuid, tenants))
        return replace(gpu, instances=tuple(sorted(instances, key=lambda item: item.start)))

    return _on(state, ids, changed)


def _on(state: HostState, ids: Collection[str], change: Callable[[StateGpu], StateGpu]) -> HostState:
    """The state with these GPUs changed, no longer as it was captured."""
    return HostState(tuple(change(gpu) if gpu.id in ids else gpu for gpu in state.gpus))
